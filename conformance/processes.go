package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

var processChecks = []check{
	{"processes/contend", "Processes that contend for a name hold it one at a time.", contendingProcesses},
	{"processes/killed", "Inspect reports the process of the holder; the name of a process that was killed becomes free; where no session carries the lock, not before its TTL is over.", killedHolder},
	{"processes/stopped", "A process that was stopped for longer than its lease never believes afterwards that it holds the name.", stoppedHolder},
}

func contendingProcesses(e *env) error {
	const processes, times = 4, 50
	workers := make([]*worker, processes)
	for i := range workers {
		workers[i] = e.worker(e.long())
	}
	name, dir := e.name(), e.tb.TempDir()
	counter := filepath.Join(dir, "counter")
	e.must(os.WriteFile(counter, []byte("0"), 0o600))
	logs := make([]string, processes)
	e.together("processes that contend", processes, func(i int) error {
		logs[i] = filepath.Join(dir, workers[i].label)
		workers[i].does(order{Op: "contend", Name: name, Times: times, File: counter, Log: logs[i], Label: workers[i].label})
		return nil
	})
	events, err := history.Read(logs...)
	e.must(err)
	v := history.Judge(events, history.Bounds{Fenced: e.driverInfo().Fencing != driver.None, MinClients: processes})
	if err := v.Err(); err != nil {
		return inWords(err)
	}
	got, err := readNumber(counter)
	e.must(err)
	if want := processes * times; got != want {
		return fmt.Errorf("%d updates under the lock left the counter in a file at %d", want, got)
	}
	return nil
}

func killedHolder(e *env) error {
	p, d, name := e.worker(e.ttl()), e.driver(), e.name()
	called := time.Now()
	p.does(order{Op: "lock", Name: name})
	if err := d.refused(name); err != nil {
		return err
	}
	if inspector, ok := d.driver.(driver.Inspector); ok {
		s, err := inspector.Inspect(e.ctx, name)
		if want := fmt.Sprintf(":%d", p.process.Pid); err == nil && s.Process != "" && !strings.HasSuffix(s.Process, want) {
			return fmt.Errorf("Inspect by %s reports the process %q, want one that ends in %q, which is %s", d.label, s.Process, want, p.label)
		}
	}
	p.kill()
	r := d.start(name).granted()
	if early := called.Add(e.ttl()).Sub(r.at); early > 0 && !e.driverInfo().KeepsAlive {
		return fmt.Errorf("%s was granted %q %v before the lease of the process that was killed was over", d.label, name, early)
	}
	r.release()
	return nil
}

func stoppedHolder(e *env) error {
	p, d, name := e.worker(e.ttl()), e.driver(), e.name()
	for range 2 {
		p.does(order{Op: "lock", Name: name})
		p.stop()
		next := d.start(name).granted()
		p.cont()
		if r := p.tell(order{Op: "check", Name: name}); !r.Lost {
			return fmt.Errorf("%s, which was stopped until %s was granted %q, says of its lease: %s, want ErrLost", p.label, d.label, name, r)
		}
		if err := next.keeps("the other process went on"); err != nil {
			return err
		}
	}
	return nil
}
