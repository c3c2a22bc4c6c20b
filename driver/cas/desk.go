package cas

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// desk makes all changes to one record for this driver, in rounds. The callers
// that wait for a round share a read and a write. Between rounds, the callers
// that have a place in the queue share the notifications and the polls.
type desk struct {
	d     *Driver
	name  string
	users int           // guarded by Driver.mu: callers, leases, and the goroutine
	idle  *list.Element // guarded by Driver.mu: in Driver.idle, if there are no users
	wake  chan struct{} // full when the goroutine must check the fields below

	mu     sync.Mutex
	busy   bool      // the goroutine is running, or a batch owns the desk
	known  *view     // the record as this driver last saw it, or nil
	jobs   []*job    // in the order of arrival
	next   time.Time // time of the next round, if no new job arrives earlier
	cancel func()    // cancels the current round
	calls  int       // callers that wait for the round

	changed bool          // the store has reported a change
	gather  time.Duration // how long the next round waits for more changes
}

// job is a change of a record for one caller.
type job struct {
	hold string

	// to is the change: it changes the record, or fails. A job that fails with
	// errQueued stays at the desk and must be called again at due. It may have
	// changed the record, which is then dirty.
	to  func(v *view) error
	due time.Time

	request *driver.Request // of an Acquire
	queued  chan struct{}   // closed when the job first stays at the desk
	done    chan struct{}   // closed when the fields below are final
	err     error
	wrote   bool
	v       *view // the record after the round, or before the round if there was an error

	// Guarded by desk.mu.
	served bool // the job has been in a round, and has a place in the queue
	round  bool // the job is in a round now
	quits  bool // the caller waits only for the end of the round
	left   bool // the caller is gone, and a cleanup is expected
}

// errQueued means that the request has a place in the queue.
var errQueued = fmt.Errorf("%w, and the request waits", driver.ErrLocked)

// desk returns the desk of a name.
func (d *Driver) desk(name string) *desk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.desks[name]; k != nil {
		return k
	}
	return &desk{d: d, name: name, wake: make(chan struct{}, 1)}
}

// pin keeps the desk for other callers of the name, until unpin is called.
func (k *desk) pin() {
	k.d.mu.Lock()
	defer k.d.mu.Unlock()
	k.users++
	if k.idle != nil {
		k.d.idle.Remove(k.idle)
		k.idle = nil
	}
	if k.d.desks[k.name] == nil {
		k.d.desks[k.name] = k
	}
}

// unpin ends a pin. The desks of the most recently used names are kept, because
// a record that is known saves the next caller a read.
func (k *desk) unpin() {
	d := k.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if k.users--; k.users > 0 || d.desks[k.name] != k {
		return
	}
	k.idle = d.idle.PushBack(k)
	if d.idle.Len() > maxIdle {
		old := d.idle.Remove(d.idle.Front()).(*desk)
		old.idle = nil
		delete(d.desks, old.name)
	}
}

const maxIdle = 1000

// do carries out a job. If ctx ends first, do returns soon after. The error is
// errQueued if the job has a place in the queue, and matches driver.ErrUnknown
// if the job may still be carried out.
func (k *desk) do(ctx context.Context, j *job) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	k.pin()
	defer k.unpin()
	j.queued, j.done = make(chan struct{}), make(chan struct{})
	k.mu.Lock()
	k.jobs = append(k.jobs, j)
	k.start()
	k.mu.Unlock()
	select {
	case <-j.queued:
		j.request.Events.Waiting()
	case <-j.done:
		return j.err
	case <-ctx.Done():
	}
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
	}
	k.mu.Lock()
	if !j.round {
		defer k.mu.Unlock()
		k.jobs = slices.DeleteFunc(k.jobs, func(other *job) bool { return other == j })
		k.kick()
		if !j.served {
			return fmt.Errorf("%w: %w", driver.ErrUnavailable, ctx.Err())
		}
		return j.err
	}
	j.quits = true
	if k.calls--; k.calls == 0 {
		k.cancel()
	}
	k.mu.Unlock()
	timer := time.NewTimer(leaveFor)
	defer timer.Stop()
	select {
	case <-j.done:
		return j.err
	case <-timer.C:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !j.round {
		return j.err
	}
	j.left = true
	k.d.clean.Expect(1)
	return errLeft
}

// errLeft means that the caller has left and the desk cleans up.
var errLeft = fmt.Errorf("%w: the request is under way", driver.ErrUnknown)

// start starts the goroutine, or wakes it. Called with mu held.
func (k *desk) start() {
	if k.busy {
		k.kick()
		return
	}
	k.busy = true
	k.pin()
	if !k.d.life.Go(k.run) {
		k.stop()
		k.unpin()
	}
}

// stop ends the jobs when the driver closes. Called with mu held.
func (k *desk) stop() {
	for _, j := range k.jobs {
		j.err = fmt.Errorf("%w: %w", driver.ErrUnavailable, driver.ErrClosed)
		close(j.done)
	}
	k.jobs, k.busy = nil, false
}

func (k *desk) kick() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run returns when there are no jobs, or when the driver is closed.
func (k *desk) run() {
	defer k.unpin()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var stop func() // ends the notifications
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	for {
		k.mu.Lock()
		if len(k.jobs) == 0 || k.d.life.Context().Err() != nil {
			k.stop()
			k.mu.Unlock()
			return
		}
		if next := time.Now().Add(k.gather); k.changed && next.Before(k.next) {
			k.next = next
		}
		k.changed = false
		isNew := slices.ContainsFunc(k.jobs, func(j *job) bool { return !j.served })
		rest := time.Until(k.next)
		k.mu.Unlock()
		if isNew || rest <= 0 {
			k.serve(!isNew)
			if n, ok := k.d.store.(Notifier); ok && stop == nil && k.waits() {
				stop = k.listen(n)
			}
			continue
		}
		timer.Reset(rest)
		select {
		case <-k.wake:
		case <-timer.C:
		case <-k.d.life.Context().Done():
		}
	}
}

func (k *desk) waits() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.jobs, func(j *job) bool { return j.served })
}

// listen makes the store report changes for the waiters.
func (k *desk) listen(n Notifier) (stop func()) {
	stop, err := n.Notify(k.name, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.changed = true
		k.kick()
	})
	if err != nil { // the waiters poll
		return nil
	}
	return stop
}

// serve runs one round.
func (k *desk) serve(look bool) {
	ctx, cancel := context.WithCancel(k.d.life.Context())
	defer cancel()
	k.mu.Lock()
	var jobs, acquires []*job
	for _, j := range k.jobs {
		if j.round = true; j.request == nil {
			jobs = append(jobs, j)
		} else {
			acquires = append(acquires, j)
		}
	}
	jobs = append(jobs, acquires...) // they may be granted a name that the other jobs release
	known := k.known
	k.known, k.cancel, k.calls = nil, cancel, len(jobs)
	k.mu.Unlock()
	v := k.change(ctx, jobs, known, look)
	k.mu.Lock()
	defer k.mu.Unlock()
	over := func(j *job) bool {
		if !j.round {
			return false // a change was reported in the meantime
		}
		if j.err == errQueued && !j.served {
			close(j.queued)
		}
		j.served, j.round = true, false
		if j.err == errQueued && !j.quits {
			return false
		}
		if j.left {
			if j.request != nil {
				k.d.clean.Add(j.ghost())
			}
			k.d.clean.Expect(-1)
		}
		close(j.done)
		return true
	}
	k.jobs = slices.DeleteFunc(k.jobs, over)
	if k.known = v; v != nil && v.version == "" {
		k.known = nil // so that a later record cannot begin like this one
	}
	k.plan()
}

// change is the only function that changes records. It replaces the record with
// the result of the jobs and tries again until no other client has changed it
// in between. Expired claims are removed, unless they belong to a job. A known
// record saves the first read. Likewise, the assumption that there is no record
// saves a read if records of free names are deleted. A job must not fail
// because of the known record or the assumption, since either may be stale.
// change returns the record if it is known.
func (k *desk) change(ctx context.Context, jobs []*job, known *view, look bool) *view {
	d := k.d
	if known == nil && d.vanishes() && !slices.ContainsFunc(jobs, func(j *job) bool { return j.request == nil }) {
		known = &view{at: time.Now()} // the name is probably free
		known.Name = k.name
	}
	fresh := look || known == nil
	var err error
	for tries := 0; ; {
		v := known
		if fresh {
			if v, err = d.read(ctx, k.name, known); err != nil {
				break
			}
			known = v
		}
		next := v.next()
		if fresh {
			next.prune(jobs)
		}
		dirty, failed := false, false
		for _, j := range jobs {
			next.dirty = false
			j.err = j.to(next)
			j.v, j.wrote = next, j.err == nil || next.dirty
			dirty = dirty || j.wrote
			failed = failed || j.err != nil && j.err != errQueued
		}
		if failed && !fresh {
			fresh = true
			continue
		}
		if !dirty {
			return v
		}
		if err = d.write(ctx, v, next); err == nil {
			return next
		}
		if !errors.Is(err, ErrChanged) {
			break
		}
		for _, j := range jobs {
			j.due = time.Time{} // the renewal was not written
		}
		if !fresh {
			fresh = true
		} else if tries++; !d.life.Sleep(ctx, rand.N(time.Millisecond<<min(tries, 6))) {
			err = fmt.Errorf("%w: the record of %q keeps changing: %w", driver.ErrUnavailable, k.name, ctx.Err())
			break
		}
	}
	unknown := errors.Is(err, driver.ErrUnknown)
	for _, j := range jobs {
		if j.wrote || !unknown {
			j.err = err
		}
		if known != nil {
			j.v = known
		}
	}
	return nil
}

// plan sets the time of the next round. Called with mu held.
func (k *desk) plan() {
	k.next, k.gather = time.Now(), 0
	v := k.known
	if v == nil {
		return
	}
	wait, due, waiters := k.d.Poll, time.Now().Add(time.Hour), map[string]bool{}
	for _, j := range k.jobs {
		if j.served {
			waiters[j.hold] = true
			if j.due.Before(due) {
				due = j.due
			}
		}
	}
	ahead := max(0, slices.IndexFunc(v.Queue, func(c claim) bool { return waiters[c.Hold] }))
	if _, ok := k.d.store.(Notifier); ok {
		wait = lookAfter
		if ahead > 1 { // earlier waiters read first
			k.gather = time.Duration(min(ahead, 50)) * burst
		}
	} else if ahead > 1 {
		bound := behind
		if m := v.Queue[ahead].Mode; m.Excludes(m) { // the waiters ahead get it one by one
			bound *= 5
		}
		wait *= time.Duration(min(ahead, bound))
	}
	wait = min(wait, time.Until(due))
	for _, claims := range [][]claim{v.Holds, v.Queue[:ahead]} {
		for _, c := range claims {
			wait = min(wait, c.left-time.Since(v.at))
		}
	}
	k.next = k.next.Add(max(wait, time.Millisecond))
}

// read returns the record of a name. It does not decode a known record.
func (d *Driver) read(ctx context.Context, name string, known *view) (*view, error) {
	short, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	e, err := d.store.Read(short, name)
	switch {
	case err == nil:
		return d.decode(name, e, known)
	case lasts(err):
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, cmp.Or(ctx.Err(), err))
}

// write replaces v with next in the store and sets the version of next.
func (d *Driver) write(ctx context.Context, v, next *view) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	short, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	var err error
	switch {
	case !next.deletable():
		var value []byte
		if value, err = d.encode(v, next); err != nil {
			return err
		}
		next.version, err = d.store.Write(short, next.Name, value, v.version)
		next.written = time.Time{}
	case v.version != "":
		err = d.store.Delete(short, next.Name, v.version)
		next.version = ""
	}
	return d.outcome(ctx, err)
}

// lasts reports whether a request with this error should not be repeated.
func lasts(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported)
}

// outcome converts the error from a write to an error of the driver.
func (d *Driver) outcome(ctx context.Context, err error) error {
	switch {
	case err == nil, lasts(err), errors.Is(err, ErrChanged), errors.Is(err, driver.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUnknown, cmp.Or(ctx.Err(), err))
}
