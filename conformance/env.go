package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// env is what a check works with: clients of one backend, names, and a way to wait for things that is bounded.
//
// Methods of an env, and of what it made, that do not return an error end the check when they cannot do what they say, as if the
// check had returned that error. They may be called by the goroutine of the check and by those that it started with spawn.
type env struct {
	tb      testing.TB
	backend *Backend
	ctx     context.Context // until the check is over
	cancel  context.CancelFunc
	events  *events
	work    sync.WaitGroup // goroutines of the check
	minTTL  time.Duration  // Harness.TTL
	mutate  func(locker) locker

	mu      sync.Mutex
	err     error // the first, by which the check failed
	names   int
	run     string // makes names unique among runs
	closers []func(context.Context)
	links   []*Link
	labels  int
	info    *driver.Info
	thaw    func()
	other   *rawDriver // see outsider
}

func newEnv(tb testing.TB, h Harness) *env {
	e := &env{tb: tb, events: newEvents(), minTTL: h.TTL, run: rand.Text()[:10], mutate: h.mutate}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.backend = h.Backend(tb)
	return e
}

// check runs f, in a goroutine that the methods of e can end.
func (e *env) check(f func(*env) error) result {
	finished := false
	done := make(chan struct{})
	go func() { // ends with f, which waits for nothing without a bound
		defer close(done)
		e.failed(f(e))
		finished = true
	}()
	<-done
	e.mu.Lock()
	defer e.mu.Unlock()
	var r result
	var refused *refusedError
	var missing *missingError
	switch {
	case errors.As(e.err, &refused):
		r.refused = refused.capability
	case errors.As(e.err, &missing):
		r.missing = missing.ability
	case e.err == nil && !finished:
		e.err = errors.New("the harness ended the check")
		fallthrough
	case e.err != nil:
		r.err, r.events = e.err, e.events.String()
	}
	return r
}

// failed records that the check failed, if err is not nil.
func (e *env) failed(err error) {
	if err == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// end ends the check with an error.
func (e *env) end(err error) {
	e.failed(err)
	runtime.Goexit()
}

func (e *env) endf(format string, args ...any) { e.end(fmt.Errorf(format, args...)) }

// must ends the check if err is not nil.
func (e *env) must(err error) {
	if err != nil {
		e.end(err)
	}
}

// close ends all clients and goroutines of the check.
func (e *env) close() {
	e.cancel()
	e.mu.Lock()
	closers, links, thaw := e.closers, e.links, e.thaw
	e.mu.Unlock()
	if thaw != nil {
		thaw()
	}
	for _, l := range links {
		if l.Heal != nil {
			l.Heal()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeFor)
	defer cancel()
	var all sync.WaitGroup
	for _, f := range closers {
		all.Go(func() { f(ctx) }) // ends with ctx, unless the driver is broken
	}
	all.Go(e.work.Wait)
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	giveUp := time.NewTimer(2 * closeFor)
	defer giveUp.Stop()
	select {
	case <-ended:
	case <-giveUp.C:
	}
}

// closeFor bounds the closing of the clients of a check. That of a good driver takes a round trip or two.
const closeFor = 5 * time.Second

// onClose lets f be called when the check is over.
func (e *env) onClose(f func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closers = append(e.closers, f)
}

// hangs is how long a step may take before it counts as hanging. It is no promise of anybody: a good driver is much faster.
func (e *env) hangs() time.Duration {
	i := e.driverInfo()
	return 30*time.Second + 5*(e.ttl()+i.Late)
}

// within runs f, and ends the check if f does not return in a time that only a hang takes.
func (e *env) within(what string, f func()) {
	var id string
	done := make(chan struct{})
	e.work.Go(func() {
		defer close(done)
		id = goroutineID()
		f()
	})
	e.await(what, done, &id)
}

// await waits until done is closed.
func (e *env) await(what string, done <-chan struct{}, id *string) {
	hangs := time.NewTimer(e.hangs())
	defer hangs.Stop()
	select {
	case <-done:
	case <-hangs.C:
		where := ""
		if id != nil {
			where = "\n" + stackOf(*id)
		}
		e.endf("%s: still not done after %v%s", what, e.hangs(), where)
	}
}

// until waits until cond holds, looking at it after each event and every few milliseconds.
func (e *env) until(what string, cond func() bool) {
	hangs := time.NewTimer(e.hangs())
	defer hangs.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		next := e.events.next()
		if cond() {
			return
		}
		select {
		case <-next:
		case <-look.C:
		case <-hangs.C:
			e.endf("%s: still not so after %v", what, e.hangs())
		}
	}
}

// sleep lets d pass.
func (e *env) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}

// task is a goroutine of a check.
type task struct {
	env  *env
	what string
	done chan struct{}
}

// spawn runs f in a goroutine. An error that f returns fails the check, when it is waited for.
func (e *env) spawn(what string, f func() error) *task {
	t := &task{env: e, what: what, done: make(chan struct{})}
	e.work.Go(func() { // ends with f, which waits for nothing without a bound
		defer close(t.done)
		e.failed(f())
	})
	return t
}

// wait waits until the task is done, and ends the check if anything has failed.
func (t *task) wait() {
	t.env.await(t.what, t.done, nil)
	t.env.mu.Lock()
	err := t.env.err
	t.env.mu.Unlock()
	if err != nil {
		runtime.Goexit()
	}
}

// together runs f n times at once, with the numbers from 0, and waits until all are done.
func (e *env) together(what string, n int, f func(i int) error) {
	tasks := make([]*task, n)
	start := make(chan struct{})
	for i := range tasks {
		tasks[i] = e.spawn(what, func() error {
			<-start
			return f(i)
		})
	}
	close(start)
	for _, t := range tasks {
		t.wait()
	}
}

// name returns the name of a lock that nobody has used before.
func (e *env) name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names++
	return fmt.Sprintf("conformance/%s/%d", e.run, e.names)
}

// label returns the name of the next client in the events: A, B, …, Z, AA.
func (e *env) label() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.labels
	e.labels++
	return strings.Repeat(string(rune('A'+n%26)), 1+n/26)
}

// driverInfo returns what the driver claims.
func (e *env) driverInfo() driver.Info {
	e.mu.Lock()
	info := e.info
	e.mu.Unlock()
	if info == nil {
		return e.outsider().tap.Info()
	}
	return *info
}

// longTTL is that of leases which are not to end by themselves during a check.
const longTTL = 10 * time.Minute

// long returns the TTL of leases that do not run out.
func (e *env) long() time.Duration { return e.allowed(longTTL) }

// ttl returns the TTL of leases whose end a check waits for.
func (e *env) ttl() time.Duration {
	if e.minTTL > 0 {
		return e.allowed(e.minTTL)
	}
	return e.allowed(time.Second)
}

// allowed returns the TTL next to d that the driver keeps.
func (e *env) allowed(d time.Duration) time.Duration {
	i := e.driverInfo()
	d = max(d, i.MinTTL)
	if u := i.TTLUnit; u > 0 {
		d = (d + u - 1) / u * u
	}
	if i.MaxTTL > 0 && d > i.MaxTTL {
		d = i.MaxTTL
		if i.TTLUnit > 0 {
			d -= d % i.TTLUnit
		}
	}
	return d
}
