package dsync

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// overdue makes the watchdog check a new lease once it has been held for
// SlowHold. Called with lock.mu held.
func (l *Lease) overdue(r request) {
	c := l.hold.lock.client
	if r.fixed || r.maxHold == 0 && c.slowHold == 0 {
		return
	}
	now := c.now()
	if r.maxHold > 0 {
		l.setEnd(now + r.maxHold)
	}
	if c.slowHold > 0 {
		l.slow = &holdAlarm{Of: watched{l.hold, l}}
		c.watchdog.endAt(l.slow, now+c.slowHold)
	}
}

// tellSlow logs that a lease has been held for longer than Options.SlowHold.
// Called with lock.mu held.
func (l *Lease) tellSlow(now moment) {
	c := l.hold.lock.client
	if at := l.slow.At(); now < at {
		c.watchdog.endAt(l.slow, at)
		return
	}
	l.slow = nil
	c.telemetry.HeldForLong(l.reported(), l.hold.call, c.slowHold)
}

// soleLease returns the lease of a live hold that has only one lease, or nil.
// Called with mu held.
func (k *lock) soleLease() *Lease {
	if !k.alone() || k.hold == nil || k.hold.views == nil || k.hold.views.next != nil {
		return nil
	}
	return k.hold.views
}

// watchOwn logs a warning when a call has waited for ownFor for one lease of
// its own client, because a caller may have locked a name twice. At any time,
// only one of the calls that wait for a name does so. stop must be called when
// the call has returned. Called with mu held.
func (k *lock) watchOwn(ctx context.Context, l *Lease) (stop func()) {
	k.watched = true
	stopped := false
	var timer *time.Timer
	timer = time.AfterFunc(ownFor, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if stopped {
			return
		}
		now := k.client.now()
		switch own := k.soleLease(); {
		case own != l:
			l = own
		case own != nil && now >= k.hush:
			k.hush = now + warnEvery
			k.tellOwn(ctx, own)
		}
		timer.Reset(ownFor)
	})
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		timer.Stop()
		stopped, k.watched = true, false
	}
}

func (k *lock) tellOwn(ctx context.Context, l *Lease) {
	var by error
	if l.by != nil {
		by = l.by
	}
	_, bounded := ctx.Deadline()
	k.client.telemetry.WaitsForOwn(l.reported(), ownFor, by, !bounded)
}

// errNoLease is the error of a nil Lease, and of the zero Lease.
var errNoLease = &notHeldError{text: "lock not held: no lease"}

// view returns the lease that l represents: l itself, or the lease of a handle.
// It returns nil if l represents no lease.
func (l *Lease) view() *Lease {
	if l == nil || l.hold != nil {
		return l
	}
	return l.next
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// contextOfView is like Context, but for a handle: the context refers to the
// handle, not to the lease.
func (l *Lease) contextOfView(parent context.Context) (context.Context, context.CancelFunc) {
	view := l.view()
	if view == nil {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(errNoLease)
		return ctx, func() {}
	}
	ctx, cancel := view.Context(parent)
	return &leaseContext{Context: ctx, lease: view, handle: l, outer: ctx.(*leaseContext).outer}, cancel
}

// forgotten keeps the leases whose handles are gone, until the watchdog ends
// them. The cleanup of a handle does not run in a goroutine of the client, and
// it runs outside a bubble of testing/synctest.
type forgotten struct {
	mu     sync.Mutex
	leases []forgottenLease
}

type forgottenLease struct {
	*Lease
	by []uintptr // the call stack of Lock
}

// handOut returns the lease for the caller of Lock. With Options.Debug it is a
// handle. The client has no reference to the handle, so the garbage collector
// finds the handle when the lease can no longer be unlocked.
func (c *Client) handOut(l *Lease) *Lease {
	if !c.debug || l == nil {
		return l
	}
	handle := &Lease{next: l}
	pcs := make([]uintptr, 32)
	pcs = pcs[:runtime.Callers(3, pcs)]
	runtime.AddCleanup(handle, c.forget, forgottenLease{l, pcs})
	l.hold.lock.mu.Lock()
	l.by = pcs
	l.hold.lock.mu.Unlock()
	return handle
}

// forget is called when the handle of a lease is gone.
func (c *Client) forget(f forgottenLease) {
	k := f.hold.lock
	k.mu.Lock()
	over := f.err != nil
	k.mu.Unlock()
	if over {
		return
	}
	c.forgotten.mu.Lock()
	defer c.forgotten.mu.Unlock()
	c.forgotten.leases = append(c.forgotten.leases, f)
}

// end ends the forgotten leases.
func (g *forgotten) end() {
	g.mu.Lock()
	leases := g.leases
	g.leases = nil
	g.mu.Unlock()
	for _, f := range leases {
		k := f.hold.lock
		k.mu.Lock()
		if now := k.client.now(); f.check(now) == nil {
			f.endItself(now, &lostError{cause: lossForgotten, err: callers(f.by)})
		}
		k.mu.Unlock()
	}
}

// callers is the call stack that acquired a lease that was forgotten.
type callers []uintptr

func (c callers) Error() string {
	var text strings.Builder
	text.WriteString("locked by")
	frames := runtime.CallersFrames(c)
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") && !strings.HasPrefix(f.Function, "github.com/go-dsync/dsync.") {
			fmt.Fprintf(&text, " %s (%s:%d)", f.Function, filepath.Base(f.File), f.Line)
		}
		if !more {
			return text.String()
		}
	}
}
