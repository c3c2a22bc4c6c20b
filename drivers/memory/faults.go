package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Fault describes how the requests of one driver misbehave, for tests of
// programs under faults. See [Driver.Inject].
type Fault struct {
	Kind  FaultKind
	On    Requests      // the requests that the fault affects; 0 means all
	Delay time.Duration // added to each request
	Times int           // the fault ends after this many requests; 0 means that it lasts until Heal
}

// FaultKind is the effect of a [Fault] on a request.
type FaultKind int

const (
	Slow       FaultKind = iota // no effect except Delay
	CutOff                      // the request is not carried out and fails with driver.ErrUnavailable
	Hang                        // no answer until Heal, when the request continues, or until the request's context ends
	LoseAnswer                  // the request is carried out and fails with driver.ErrUnknown
)

// Requests is a set of request kinds.
type Requests uint8

const (
	Acquires Requests = 1 << iota // includes the message that grants a name after a wait
	Renewals                      // includes keep-alives of sessions; RenewAll counts as one request
	Releases                      // includes Leave
	Queries                       // Inspect, ForceUnlock, SetLimit, Sealed and Latch
	Seals                         // Seal, Mark, Loosen, Unseal and Unmark
	Latches                       // SetLatch, CountDown and DeleteLatch
)

// Cut makes the backend unreachable for d. Every request fails with
// driver.ErrUnavailable, waiting Acquires fail immediately, and d receives no
// messages from the backend. So the leases of d expire, and the other drivers
// of the server can acquire their names. Cut is short for Inject(Fault{Kind:
// CutOff}).
func (d *Driver) Cut() { d.Inject(Fault{Kind: CutOff}) }

// Heal ends the fault. Hanging requests continue, holds that failed requests
// left behind are ended, and d is notified of its holds that were removed in
// the meantime. When Heal returns, all of this is done, but the requests may
// still be under way.
func (d *Driver) Heal() { d.setFault(nil) }

// Inject makes the requests of d misbehave until Heal. It replaces an earlier
// fault. Other drivers of the server are not affected.
func (d *Driver) Inject(f Fault) { d.setFault(&f) }

func (d *Driver) setFault(f *Fault) {
	s := d.server
	s.mu.Lock()
	d.fault = f
	d.faulty.Store(f != nil)
	close(d.changed)
	d.changed = make(chan struct{})
	if d.isCut() {
		s.dismiss(func(l *lease) bool { return l.d == d }, errCut)
	}
	d.endBehind(s.now())
	losses := d.hear()
	s.watchers.notifyDriver(d)
	s.latches.watchers.notifyDriver(d)
	s.mu.Unlock()
	reportLosses(losses)
}

var errCut = fmt.Errorf("%w: the driver is cut off", driver.ErrUnavailable)

// unknown wraps err, which may be nil, so that it matches driver.ErrUnknown.
func unknown(err error) error {
	if err == nil {
		return driver.ErrUnknown
	}
	if errors.Is(err, driver.ErrUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
}

// request simulates sending a request to the server. lost reports that the
// answer will not arrive. After an error the request must not be carried out.
func (d *Driver) request(ctx context.Context, r Requests) (lost bool, err error) {
	for d.faulty.Load() {
		if d.life.Err() != nil {
			return false, driver.ErrClosed
		}
		f, changed := d.meet(r)
		if f.Delay > 0 || f.Kind == Hang {
			again, err := d.pause(ctx, f, changed)
			if err != nil {
				return false, err
			}
			if again {
				continue
			}
		}
		if f.Kind == CutOff {
			return false, errCut
		}
		return f.Kind == LoseAnswer, nil
	}
	return false, nil
}

// meet returns the fault that affects a request of kind r, or the zero Fault,
// and a channel that is closed by the next Inject or Heal.
func (d *Driver) meet(r Requests) (Fault, <-chan struct{}) {
	s := d.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if !d.hits(r) {
		return Fault{}, d.changed
	}
	f := *d.fault
	if f.Times == 1 {
		d.fault = nil
		d.faulty.Store(false)
		d.endBehind(s.now())
	} else if f.Times > 1 {
		d.fault.Times--
	}
	return f, d.changed
}

// pause makes a request wait and reports whether the fault changed during the
// wait.
func (d *Driver) pause(ctx context.Context, f Fault, changed <-chan struct{}) (again bool, err error) {
	var late <-chan time.Time
	if f.Kind != Hang {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-late:
		return false, nil
	case <-changed:
		return true, nil
	case <-ctx.Done():
		return false, unknown(ctx.Err()) // a client cannot know whether the request was carried out
	case <-d.life.Done():
		return false, driver.ErrClosed
	}
}

// The methods below are called with Server.mu held.

// hits reports whether there is a fault that affects requests of kind r.
func (d *Driver) hits(r Requests) bool {
	return d.fault != nil && (d.fault.On == 0 || d.fault.On&r != 0)
}

// isCut reports whether an Acquire cannot wait, because its connection is down.
func (d *Driver) isCut() bool {
	return d.hits(Acquires) && d.fault.Kind == CutOff && d.fault.Times == 0
}

// isDeaf reports whether messages from the server fail to arrive.
func (d *Driver) isDeaf() bool {
	return d.fault != nil && d.fault.On == 0 && d.fault.Times == 0 && (d.fault.Kind == CutOff || d.fault.Kind == Hang)
}

// leaveBehind makes endBehind end l, which is held, on the server. From now on
// nothing keeps l alive.
func (d *Driver) leaveBehind(l *lease) {
	if !l.behind {
		l.behind = true
		l.leaveSession()
		d.behind = append(d.behind, l)
	}
}

// endBehind ends the holds that were left behind, if a request gets through. It
// drops leases that have expired.
func (d *Driver) endBehind(now int64) {
	if len(d.behind) == 0 {
		return
	}
	blocked := d.hits(Releases) && d.fault.Kind != Slow
	d.behind = slices.DeleteFunc(d.behind, func(l *lease) bool {
		switch {
		case l.fate != held:
			return true
		case l.end() <= now:
			d.server.next(l, over, now)
			return true
		case blocked:
			return false
		case l.released:
			d.server.next(l, freed, now)
		default:
			d.server.next(l, over, now)
		}
		return true
	})
}

// hear returns the losses of which the holders of d must be notified, if the
// server can reach d.
func (d *Driver) hear() []loss {
	if d.isDeaf() {
		return nil
	}
	losses := slices.DeleteFunc(d.unheard, func(x loss) bool { return x.l.released })
	d.unheard = nil
	return losses
}
