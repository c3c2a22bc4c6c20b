// Package migrate is the path from one backend to another while everything runs: a driver made of two, from and to. It registers the
// URL scheme "migrate":
//
//	migrate:?from=redisson%3A%2F%2Fold%3A6379&to=redisson%3A%2F%2Fnew%3A6379&phase=dual
//
// A process is in one [Phase] at a time, from PhaseOld to PhaseNew. Processes exclude each other at every moment whatever phases they
// are in, together with programs that know nothing of the migration and use from alone. No process has to know of another: what keeps
// a process in PhaseNew apart from those that know only from is the seal, a grant on from that never ends. See docs/migration.md.
//
// From has to be a [driver.Sealer], to a [driver.Marker]. Names go back only where they are a [driver.Unsealer] and a
// [driver.Unmarker] too.
package migrate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Phase says which of the two backends a process asks. A name that is sealed on from has moved: whatever the phase, it is taken on to
// alone from then on.
type Phase int8

const (
	PhaseOld      Phase = iota // from
	PhaseDual                  // from, then to; the tokens are those of from
	PhaseHandover              // as PhaseDual, and the name is sealed on from with the grant
	PhaseNew                   // to; a name that is not sealed yet is sealed with the grant
)

var phaseNames = [...]string{"old", "dual", "handover", "new"}

func (p Phase) valid() bool { return PhaseOld <= p && p <= PhaseNew }

func (p Phase) String() string {
	if !p.valid() {
		return "invalid phase"
	}
	return phaseNames[p]
}

// Options of a Driver. The zero value is fine.
type Options struct {
	Phase Phase

	// Unfenced gives up the tokens. Without it a pair is refused of which only from has tokens.
	Unfenced bool
}

// Driver is a driver.Driver made of two. It implements driver.BatchRenewer, driver.Inspector and driver.ForceUnlocker too.
type Driver struct {
	from, to *backend
	sealer   driver.Sealer   // from
	unsealer driver.Unsealer // from; nil if it is none
	marker   driver.Marker   // to
	unmarker driver.Unmarker // to; nil if it is none
	info     driver.Info
	phase    atomic.Int32
	id       string        // of the driver, in the holds that it makes
	holds    atomic.Uint64 // how many it has made

	life context.Context // until Close
	end  context.CancelFunc

	mu       sync.Mutex
	sessions map[sessionKey]*session
	closed   bool
	ended    bool           // no more work
	calls    sync.WaitGroup // Acquires
	work     sync.WaitGroup // clean-ups
}

var (
	_ driver.Driver        = (*Driver)(nil)
	_ driver.BatchRenewer  = (*Driver)(nil)
	_ driver.Inspector     = (*Driver)(nil)
	_ driver.ForceUnlocker = (*Driver)(nil)
)

// backend is one of the two.
type backend struct {
	driver.Driver
	info driver.Info
	role string
}

// New returns a driver that moves locks from one backend to another. It owns both from then on: Close closes them. After an error
// they are still the caller's. A pair whose tokens could fall is refused, as is one that cannot be migrated.
func New(from, to driver.Driver, o *Options) (*Driver, error) {
	if o == nil {
		o = &Options{}
	}
	if from == nil || to == nil || from == to {
		return nil, errors.New("migrate: it needs two different drivers")
	}
	if !o.Phase.valid() {
		return nil, fmt.Errorf("migrate: Options.Phase is %d", o.Phase)
	}
	d := &Driver{from: &backend{from, from.Info(), "old"}, to: &backend{to, to.Info(), "new"}, id: rand.Text(),
		sessions: map[sessionKey]*session{}}
	var ok bool
	if d.sealer, ok = from.(driver.Sealer); !ok {
		return nil, fmt.Errorf("migrate: no migration from backend %s, which cannot seal a lock: %w", d.from.info.Name, errors.ErrUnsupported)
	}
	if d.marker, ok = to.(driver.Marker); !ok {
		return nil, fmt.Errorf("migrate: no migration to backend %s, which cannot keep a mark and a floor of the tokens: %w",
			d.to.info.Name, errors.ErrUnsupported)
	}
	d.unsealer, _ = from.(driver.Unsealer)
	d.unmarker, _ = to.(driver.Unmarker)
	if d.from.info.Fencing != driver.None && d.to.info.Fencing == driver.None && !o.Unfenced {
		return nil, fmt.Errorf("migrate: backend %s has fencing tokens and %s has none, so what checks them would refuse everybody "+
			"after the migration: %w", d.from.info.Name, d.to.info.Name, errors.ErrUnsupported)
	}
	d.info = weakest(d.from.info, d.to.info)
	if o.Unfenced {
		d.info.Fencing = driver.None
	}
	if d.info.MaxTTL > 0 && d.info.MinTTL > d.info.MaxTTL {
		return nil, fmt.Errorf("migrate: no TTL suits both backends %s and %s: %w", d.from.info.Name, d.to.info.Name, errors.ErrUnsupported)
	}
	d.phase.Store(int32(o.Phase))
	d.life, d.end = context.WithCancel(context.Background())
	return d, nil
}

// weakest returns what holds in every phase, and on the way from one to the next: no order goes over from one backend to the other.
func weakest(a, b driver.Info) driver.Info {
	i := driver.Info{
		Name:       "migrate",
		Order:      driver.Unordered,
		Fencing:    min(a.Fencing, b.Fencing),
		KeepsAlive: a.KeepsAlive || b.KeepsAlive, // with sessions of ours on the one that has none
		MinTTL:     max(a.MinTTL, b.MinTTL),
		MaxTTL:     max(a.MaxTTL, b.MaxTTL),
		TTLUnit:    common(a.TTLUnit, b.TTLUnit),
		Late:       max(a.Late, b.Late),
	}
	if a.MaxTTL > 0 && b.MaxTTL > 0 {
		i.MaxTTL = min(a.MaxTTL, b.MaxTTL)
	}
	if a.Detect > 0 && b.Detect > 0 {
		i.Detect = max(a.Detect, b.Detect)
	}
	return i
}

// common returns the shortest duration that is a multiple of both, where 0 means that anything is one.
func common(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	divisor, rest := a, b
	for rest > 0 {
		divisor, rest = rest, divisor%rest
	}
	return a / divisor * b
}

// nextHold returns the identity of a hold that the driver makes.
func (d *Driver) nextHold() string { return fmt.Sprintf("%s:%d", d.id, d.holds.Add(1)) }

// Info implements driver.Driver: what both backends promise, in every phase, without an order.
func (d *Driver) Info() driver.Info { return d.info }

// Phase returns the phase of d.
func (d *Driver) Phase() Phase { return Phase(d.phase.Load()) }

// SetPhase moves d to another phase, any other. Acquires that begin from now on are in it; those that have begun, and leases, stay
// as they are until they end. Going back does not unseal a name: see [Driver.Rollback].
func (d *Driver) SetPhase(p Phase) error {
	if !p.valid() {
		return fmt.Errorf("migrate: phase %d does not exist", p)
	}
	d.phase.Store(int32(p))
	return nil
}

// Close implements driver.Driver. It closes both backends.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.end()
	left := make(chan struct{})
	go func() { // ends with the Acquires, which end with d.life
		defer close(left)
		d.calls.Wait()
	}()
	select {
	case <-left:
	case <-ctx.Done():
	}
	d.mu.Lock()
	d.ended = true
	sessions := slices.Collect(maps.Values(d.sessions))
	d.mu.Unlock()
	for _, s := range sessions {
		s.end()
	}
	var toErr error
	closed := make(chan struct{})
	go func() { // ends with ctx
		defer close(closed)
		toErr = d.to.Close(ctx)
	}()
	fromErr := d.from.Close(ctx)
	<-closed
	<-left
	d.work.Wait()
	return errors.Join(fromErr, toErr)
}

// enter begins an Acquire, unless d is closed.
func (d *Driver) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.calls.Add(1)
	}
	return !d.closed
}

// spawn runs f in a goroutine that Close waits for, or not at all where Close ends all holds anyway.
func (d *Driver) spawn(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.work.Go(f)
	}
}
