package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// worker is a separate process with its own client.
type worker struct {
	env     *env
	label   string
	process *os.Process
	orders  *json.Encoder
	reports *json.Decoder
	ended   *goroutine // the wait for the process
	killed  atomic.Bool
}

// workerAttr makes workers end when the suite is killed, if the system supports
// that.
var workerAttr *syscall.SysProcAttr

// worker starts a process with a client whose leases have the given TTL. The
// process ends with the check.
func (e *env) worker(ttl time.Duration) *worker {
	e.need(e.backend.URL != "", "Backend.URL")
	path, err := os.Executable()
	e.must(err)
	cmd := exec.Command(path, "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%v %s", workerEnv, ttl, e.backend.URL))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	e.must(err)
	out, w, err := os.Pipe()
	e.must(err)
	cmd.Stdout = w
	cmd.SysProcAttr = workerAttr
	started := make(chan error)
	exited := make(chan error, 1)
	e.work.Go(func() { // ends when the process ends
		// A process that ends with its parent actually ends with the parent's
		// thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		if cmd.Process != nil {
			exited <- cmd.Wait()
		}
	})
	err = <-started
	w.Close()
	e.must(err)
	p := &worker{env: e, label: e.label(), process: cmd.Process, orders: json.NewEncoder(in), reports: json.NewDecoder(out)}
	e.events.add(p.label, "process %d", cmd.Process.Pid)
	p.ended = e.run(func() {
		// ends with the process: at the end of its standard input, or when it
		// is killed
		if err := <-exited; err != nil && !p.killed.Load() {
			e.failed(fmt.Errorf("the process %s ended with: %w", p.label, err))
		}
	})
	e.onClose(func(ctx context.Context) { p.end(ctx, in, out) })
	if r := p.answer("the start of a process"); r.Err != "" {
		e.endf("the process %s: %s", p.label, r.Err)
	}
	return p
}

// end makes the process end in an orderly way, or else kills it.
func (p *worker) end(ctx context.Context, in io.Closer, out io.Closer) {
	p.cont()
	in.Close()
	select {
	case <-p.ended.done:
	case <-ctx.Done():
		p.process.Kill()
		<-p.ended.done
	}
	out.Close()
}

// kill kills the process.
func (p *worker) kill() {
	p.env.events.add(p.label, "killed")
	p.killed.Store(true)
	p.env.must(p.process.Kill())
	p.env.await("the end of a process that was killed", p.ended)
}

// tell sends an order to the worker and returns its report.
func (p *worker) tell(o order) report {
	p.env.events.add(p.label, "%s %q", o.Op, o.Name)
	p.env.must(p.orders.Encode(o))
	r := p.answer(fmt.Sprintf("%s of %q by the process %s", o.Op, o.Name, p.label))
	p.env.events.add(p.label, "%s %q: %s", o.Op, o.Name, r)
	return r
}

// does sends an order. If the worker cannot carry it out, the check ends.
func (p *worker) does(o order) {
	if r := p.tell(o); r.Err != "" {
		p.env.endf("%s of %q by the process %s: %s", o.Op, o.Name, p.label, r.Err)
	}
}

func (p *worker) answer(what string) (r report) {
	var err error
	p.env.within(what, func() { err = p.reports.Decode(&r) })
	if errors.Is(err, io.EOF) {
		err = errors.New("it ended (does TestMain call conformance.RunWorker?)")
	}
	if err != nil {
		p.env.endf("the process %s: %w", p.label, err)
	}
	return r
}

func (r report) String() string {
	if r.Err == "" {
		return "ok"
	}
	return r.Err
}

// workerEnv marks a process of the suite. Its value is the TTL and the URL of
// the backend.
const workerEnv = "DSYNC_CONFORMANCE_WORKER"

// RunWorker does nothing in a process that runs tests. In a process that the
// suite has started (see Backend.URL), it carries out the suite's orders and
// does not return. Call it in TestMain, before anything else:
//
//	func TestMain(m *testing.M) {
//		conformance.RunWorker()
//		m.Run()
//	}
func RunWorker() {
	ttl, url, ok := strings.Cut(os.Getenv(workerEnv), " ")
	if !ok {
		return
	}
	if err := work(ttl, url); err != nil {
		fmt.Fprintln(os.Stderr, "conformance: worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// order is an order to a worker.
type order struct {
	Op    string // lock, check or contend
	Name  string
	Times int    `json:",omitempty"` // contend: the number of rounds
	File  string `json:",omitempty"` // contend: the counter
	Log   string `json:",omitempty"` // contend: the History
	Label string `json:",omitempty"` // contend: the label of the process in the History
}

// report is the worker's answer to an order.
type report struct {
	Err  string `json:",omitempty"`
	Lost bool   `json:",omitempty"` // the error matches ErrLost
}

// work carries out orders from the standard input until the input ends, which
// happens at the latest when the suite's process ends.
func work(ttl, url string) error {
	d, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := dsync.Open(ctx, url, &dsync.Options{TTL: d})
	if err != nil {
		return err
	}
	w := &role{client: c, held: map[string]*dsync.Lease{}}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if err := out.Encode(report{}); err != nil { // it is ready
		return err
	}
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		var r report
		if err := w.carryOut(ctx, o); err != nil {
			r = report{Err: err.Error(), Lost: errors.Is(err, dsync.ErrLost)}
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, closeFor)
	defer cancel()
	return c.Close(ctx)
}

// role is the state of a worker.
type role struct {
	client *dsync.Client
	held   map[string]*dsync.Lease
}

func (w *role) carryOut(ctx context.Context, o order) error {
	switch o.Op {
	case "lock":
		l, err := w.client.Lock(ctx, o.Name)
		if err == nil {
			w.held[o.Name] = l
		}
		return err
	case "check":
		return w.held[o.Name].Err()
	case "contend":
		return w.contend(ctx, o)
	}
	return fmt.Errorf("unknown order %q", o.Op)
}

// contend repeatedly locks a name, increments a counter that would lose
// concurrent updates, and unlocks the name.
func (w *role) contend(ctx context.Context, o order) error {
	h, err := history.Create(o.Log, o.Label)
	if err != nil {
		return err
	}
	for range o.Times {
		op := h.Begin(history.Attempt{Client: o.Label, Name: o.Name})
		l, err := w.client.Lock(ctx, o.Name)
		op.Returned(l, err)
		if err != nil {
			return err
		}
		err = addOne(o.File)
		unlockErr := l.Unlock(op.Releasing(ctx))
		op.Released(unlockErr)
		if err := errors.Join(err, unlockErr); err != nil {
			return err
		}
	}
	return h.Close()
}

// addOne increments the number in a file.
func addOne(path string) error {
	n, err := readNumber(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
}

func readNumber(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		return 0, fmt.Errorf("the counter was read in the middle of an update: %w", err)
	}
	return n, nil
}

var processChecks = []check{
	{"processes/contend", "Processes that contend for a name hold it one at a time.", contendingProcesses},
	{"processes/killed", "Inspect reports the process of the holder. The name of a killed process becomes free, but not before the TTL has passed unless a session carries the lock.", killedHolder},
	{"processes/stopped", "A process that was stopped for longer than its lease does not believe afterwards that it holds the name.", stoppedHolder},
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
		return fmt.Errorf("%s was granted %q %v before the lease of the killed process had ended", d.label, name, early)
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
			return fmt.Errorf("%s, which was stopped until %s was granted %q, got %s from its lease, want ErrLost", p.label, d.label, name, r)
		}
		if err := next.keeps("the other process went on"); err != nil {
			return err
		}
	}
	return nil
}
