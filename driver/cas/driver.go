package cas

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/parallel"
)

// Driver is a client of a store. It implements [driver.Driver],
// [driver.Inspector], [driver.ForceUnlocker] and [driver.Limiter]. It also
// implements [driver.Lister] if the store is a [Lister], [driver.Watcher] if it
// is a [Notifier], and [driver.Leaver] if it has a clock and is not a
// [Notifier].
type Driver struct {
	Options
	store  Store
	life   *lifecycle.Lifecycle
	clean  *cleaner.Cleaner[*ghost]
	leases sync.Map // *lease: all leases that are neither released nor expired
	sights sights

	mu    sync.Mutex
	desks map[string]*desk // by name
	idle  list.List        // the desks without users, the longest idle first
}

// process is the value of Status.Process.
var process = func() string {
	host, _ := os.Hostname()
	return host + ":" + strconv.Itoa(os.Getpid())
}()

// New returns a driver of a store. The store stays open when the driver is
// closed.
func New(s Store, o Options) *Driver {
	d := &Driver{Options: o.withDefaults(), store: s, life: lifecycle.New(), sights: sights{seen: map[string]sight{}}, desks: map[string]*desk{}}
	d.clean = cleaner.New(d.life, cleaner.Policy[*ghost]{
		Settle: d.settleAll, Batch: 1, Calls: 8,
		Max: 10000, Forget: oldest,
	})
	return d
}

// oldest returns the index of the ghost that is expected to be the first to end
// by itself.
func oldest(ghosts []*ghost) (index int) {
	for i, g := range ghosts {
		if g.Added.Before(ghosts[index].Added) {
			index = i
		}
	}
	return index
}

// Info implements [driver.Driver].
func (d *Driver) Info() driver.Info {
	i := driver.Info{Name: d.Name, Order: driver.FIFOByClient, MinTTL: d.MinTTL, Poll: d.Poll}
	if _, ok := d.store.(Notifier); ok {
		i.Poll = 0
	}
	if !d.Clock {
		i.Expiry, i.LatePerTTL, i.Late = driver.Observed, 1, behind*i.Poll
	}
	if !d.NoTokens {
		i.Fencing = driver.Durable
	}
	if d.Plain {
		i.Order = driver.Unordered
		return i
	}
	i.ReadWrite = driver.Support{Offered: true, Order: i.Order, Fencing: i.Fencing}
	i.Permits = driver.Support{Offered: true, Order: i.Order}
	return i
}

// Inspect implements [driver.Inspector].
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	if err := d.life.Enter(); err != nil {
		return driver.Status{}, err
	}
	defer d.life.Leave()
	v, err := d.read(ctx, name, nil)
	if err != nil {
		return driver.Status{}, err
	}
	v.prune(nil)
	if v.Sealed != nil {
		return driver.Status{Held: true, Holders: 1, Owner: "seal", Token: v.Sealed.Last}, nil
	}
	s := driver.Status{Held: len(v.Holds) > 0, Holders: len(v.Holds), Used: v.used(), Limit: v.limit(), Waiters: len(v.Queue), Token: v.Last}
	if d.Plain {
		s.Waiters = -1
	}
	if s.Held {
		h := v.Holds[0]
		s.Mode, s.Hold, s.Owner, s.Note, s.Process, s.Since, s.TTL = h.Mode, h.Hold, h.Owner, h.Note, h.Process, h.Since, h.left
		last := v.Holds[len(v.Holds)-1] // they are in the order of their grants
		if s.Token = last.Token; s.Token == 0 {
			s.Token = d.tokenOf(v, last.Mode)
		}
	}
	for _, c := range v.Queue {
		s.Queue = append(s.Queue, c.Owner)
	}
	return s, nil
}

// alter changes a record without a hold.
func (d *Driver) alter(ctx context.Context, name string, to func(v *view) error) error {
	if err := d.life.Enter(); err != nil {
		return err
	}
	defer d.life.Leave()
	return d.desk(name).do(ctx, &job{to: to})
}

// ForceUnlock implements [driver.ForceUnlocker]. The holders notice it when
// they renew.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	return d.alter(ctx, name, func(v *view) error {
		if v.Sealed != nil {
			return driver.ErrSealed
		}
		if len(v.Holds) == 0 {
			return driver.ErrNotHeld
		}
		v.Holds = nil
		return nil
	})
}

// SetLimit implements [driver.Limiter].
func (d *Driver) SetLimit(ctx context.Context, name string, limit int) error {
	if limit < 1 {
		return fmt.Errorf("limit %d is not 1 or more", limit)
	}
	if d.Plain {
		return fmt.Errorf("backend %s has no permits: %w", d.Name, errors.ErrUnsupported)
	}
	return d.alter(ctx, name, func(v *view) error {
		v.Limit, v.Fixed = limit, true
		return nil
	})
}

// Watch implements [driver.Watcher], if the store is a [Notifier].
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	if n, ok := d.store.(Notifier); ok {
		return n.Notify(name, changed)
	}
	return nil, fmt.Errorf("backend %s reports no changes: %w", d.Name, errors.ErrUnsupported)
}

// List implements [driver.Lister], if the store is a [Lister].
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := d.list(ctx, prefix, func(name string) bool { return yield(name, nil) }); err != nil {
			yield("", err)
		}
	}
}

func (d *Driver) list(ctx context.Context, prefix string, yield func(string) bool) error {
	l, ok := d.store.(Lister)
	if !ok {
		return fmt.Errorf("backend %s lists no names: %w", d.Name, errors.ErrUnsupported)
	}
	if err := d.life.Enter(); err != nil {
		return err
	}
	defer d.life.Leave()
	for e, err := range l.List(ctx, prefix) {
		if lasts(err) {
			return err
		}
		if err != nil {
			return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
		v, err := d.decode("", e, nil)
		if err != nil {
			return err
		}
		v.prune(nil)
		if (len(v.Holds) > 0 || v.Sealed != nil) && strings.HasPrefix(v.Name, prefix) && !yield(v.Name) {
			return nil
		}
	}
	return nil
}

// Close implements [driver.Driver]: it ends Acquires, then holds, then waits
// for the cleanup.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	defer d.life.Wait()
	defer d.life.End()
	d.life.AwaitCalls(ctx)
	var leases []*lease
	for l := range d.leases.Range {
		leases = append(leases, l.(*lease))
	}
	parallel.Each(len(leases), 16, func(i int) { _ = leases[i].Release(ctx) })
	if n := d.clean.Finish(ctx); n > 0 {
		return fmt.Errorf("%w: %d unanswered requests: %w", driver.ErrUnknown, n, ctx.Err())
	}
	return nil
}
