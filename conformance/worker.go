package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// worker is another process with a client of its own.
type worker struct {
	env     *env
	label   string
	process *os.Process
	orders  *json.Encoder
	reports *json.Decoder
	ended   *goroutine // the wait for the process
	killed  atomic.Bool
}

// workerAttr makes workers end when the suite is killed, where the system can.
var workerAttr *syscall.SysProcAttr

// worker starts a process with a client whose leases have the given TTL. The process ends with the check.
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
	e.work.Go(func() { // ends with the process
		// A process that ends with its parent ends with the parent's thread.
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
	p.ended = e.run(func() { // ends with the process: at the end of its standard input, or when it is killed
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

// end lets the process end in order, or else kills it.
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

// kill ends the process by force.
func (p *worker) kill() {
	p.env.events.add(p.label, "killed")
	p.killed.Store(true)
	p.env.must(p.process.Kill())
	p.env.await("the end of a process that was killed", p.ended)
}

// tell gives an order, and returns the worker's report.
func (p *worker) tell(o order) report {
	p.env.events.add(p.label, "%s %q", o.Op, o.Name)
	p.env.must(p.orders.Encode(o))
	r := p.answer(fmt.Sprintf("%s of %q by the process %s", o.Op, o.Name, p.label))
	p.env.events.add(p.label, "%s %q: %s", o.Op, o.Name, r)
	return r
}

// does gives an order. If the worker cannot carry it out, the check ends.
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
