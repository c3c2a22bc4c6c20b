package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// member is the membership of a process in one phase. All locks of the process
// in that phase depend on it. In PhaseDual a membership has no slot and does
// not expire.
type member struct {
	g       *gate
	phase   Phase
	slot    int
	b       *backend // the backend of the slot; nil if there is none
	request *driver.Request
	lease   driver.Lease
	session atomic.Pointer[carried]

	active context.Context // ends when the process leaves the phase, or loses the slot
	stop   context.CancelFunc
	gone   chan struct{} // closed when the membership has ended completely

	mu      sync.Mutex
	uses    int // Acquires and leases
	retired bool
	left    bool // the slot has been released
	lost    error
	leases  map[*lease]struct{}
}

var _ driver.Events = (*member)(nil)

// Waiting implements driver.Events.
func (m *member) Waiting() {}

// Tokens implements driver.Events.
func (m *member) Tokens() int { return 1 }

// Lost implements driver.Events. All locks are lost with the slot.
func (m *member) Lost(cause error) {
	m.session.Load().stop()
	m.mu.Lock()
	if m.lost != nil {
		m.mu.Unlock()
		return
	}
	m.lost = fmt.Errorf("%w: the membership in phase %v: %v", driver.ErrSessionEnded, m.phase, cause)
	leases := m.leases
	m.leases = nil
	m.mu.Unlock()
	m.stop()
	for l := range leases {
		l.memberLost(m.lost)
	}
	m.g.lost(m)
}

// bound returns the earlier of t and the time until which the membership is
// certain to last.
func (m *member) bound(t time.Time) time.Time {
	if m == nil || m.b == nil {
		return t
	}
	return earlier(t, m.lease.Expires())
}

// live reports whether the process may lock under the membership.
func (m *member) live() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost == nil && !m.left && (m.b == nil || time.Now().Before(m.lease.Expires()))
}

// worthwhile reports whether it makes sense to keep the slot alive.
func (m *member) worthwhile() bool {
	live := m.live()
	if !live {
		m.g.lost(m)
	}
	return live
}

// use adds a use, unless the membership has ended.
func (m *member) use() bool {
	if !m.live() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.retired {
		return false
	}
	m.uses++
	return true
}

// carry makes a lease, for which use was called, end with the membership. It
// returns false if the membership has ended.
func (m *member) carry(l *lease) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		return false
	}
	m.leases[l] = struct{}{}
	return true
}

// drop is called when the lease has ended.
func (m *member) drop(l *lease) {
	if m == nil {
		return
	}
	m.mu.Lock()
	delete(m.leases, l)
	m.mu.Unlock()
	m.endUse()
}

// endUse ends a use.
func (m *member) endUse() {
	m.mu.Lock()
	m.uses--
	over := m.finish()
	m.mu.Unlock()
	if over {
		m.g.d.spawn(m.quit)
	}
}

// retire ends the membership with its last use. Acquires under way start again.
func (m *member) retire() {
	m.stop()
	m.mu.Lock()
	m.retired = true
	over := m.finish()
	m.mu.Unlock()
	if over {
		m.quit()
	}
}

// finish reports whether the slot must be released now. It returns true only
// once. It is called with mu held.
func (m *member) finish() bool {
	over := m.retired && m.uses == 0 && !m.left
	m.left = m.left || over
	return over
}

// quit releases the slot.
func (m *member) quit() {
	m.stop()
	if m.b != nil {
		m.session.Load().stop()
		letGo(m.lease)
	}
	m.g.mu.Lock()
	delete(m.g.retired, m)
	m.g.mu.Unlock()
	close(m.gone)
}

// newMember returns a member without a slot.
func (g *gate) newMember(p Phase) *member {
	m := &member{g: g, phase: p, gone: make(chan struct{}), leases: map[*lease]struct{}{}}
	m.active, m.stop = context.WithCancel(g.d.life)
	return m
}

// join makes the process a member.
func (g *gate) join(ctx context.Context, p Phase) (*member, error) {
	m := g.newMember(p)
	if p == PhaseDual {
		return m, nil
	}
	if err := m.takeSlot(ctx, g.own(p), slotKind(p.String())); err != nil {
		return nil, err
	}
	err := g.admit(ctx, p)
	if err == nil && !m.live() {
		err = fmt.Errorf("%w: the slot was lost", driver.ErrUnavailable)
	}
	if err != nil {
		m.retire()
		return nil, fmt.Errorf("migrate: phase %v: %w", p, err)
	}
	return m, nil
}

// admit checks whether a process with a slot of phase p may be in p.
func (g *gate) admit(ctx context.Context, p Phase) error {
	if p == PhaseNew {
		return g.admitToNew(ctx)
	}
	if err := g.nobodyIn(ctx, PhaseNew); err != nil {
		return err
	}
	closed, err := g.closed(ctx)
	if err == nil && closed {
		err = ErrFinalized
	}
	return err
}

// nobodyIn returns a BehindError if slots of a phase are taken.
func (g *gate) nobodyIn(ctx context.Context, p Phase) error {
	members, err := g.look(ctx, g.own(p), slotKind(p.String()), g.tryAt)
	if err == nil && len(members) > 0 {
		err = &BehindError{p, members}
	}
	return err
}

// letGo releases a hold that is no longer needed.
func letGo(l driver.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), undoLimit)
	defer cancel()
	_ = l.Release(ctx) // the driver cleans up after a failure
}

// takeSlot takes the first free slot.
func (m *member) takeSlot(ctx context.Context, b *backend, k slotKind) error {
	for i := range MaxMembers {
		r := m.g.d.ownRequest(slotName(k, i))
		r.NoWait, r.Events = true, m
		l, err := b.Acquire(ctx, r)
		if errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrUnknown) {
			continue
		}
		if err != nil {
			return fmt.Errorf("migrate: phase %v: %w", m.phase, err)
		}
		m.mu.Lock()
		m.slot, m.b, m.request, m.lease = i, b, r, l
		m.mu.Unlock()
		if !b.info.KeepsAlive {
			m.session.Store(m.g.d.carry(b, l, r.TTL, m.worthwhile, m.Lost))
		}
		return nil
	}
	return fmt.Errorf("migrate: phase %v: %w", m.phase, ErrFull)
}

// lookers is the maximum number of slots that are checked concurrently.
const lookers = 16

const (
	// how long a slot must be taken to count as a member's
	lookFor   = 300 * time.Millisecond
	lookPause = 20 * time.Millisecond

	// lookTTL is the TTL of a slot that is taken for a check. It is short, so
	// that a process that is killed during its check does not block other
	// processes for long.
	lookTTL = 5 * time.Second

	// lookPrefix is the prefix of the hold of a slot that is taken for a check.
	// The slot may soon belong to a member, so it is checked again.
	lookPrefix = HoldPrefix + "look-"
)

// lookAt returns the member that has a slot, or nil if the slot is free.
type lookAt func(ctx context.Context, b *backend, k slotKind, slot int) (*Member, error)

// look returns the members that have slots of a kind.
func (g *gate) look(ctx context.Context, b *backend, k slotKind, at lookAt) ([]Member, error) {
	slots := make([]int, MaxMembers)
	for i := range slots {
		slots[i] = i
	}
	for begun := time.Now(); ; {
		members, err := lookAtAll(ctx, b, k, slots, at)
		sure := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.passing })
		switch took := time.Since(begun); {
		case err != nil || len(members) == 0 || took > 2*lookTTL:
			return members, err
		case took > lookFor && len(sure) > 0:
			return sure, nil
		}
		slots = slots[:0]
		for _, m := range members {
			slots = append(slots, m.Slot)
		}
		select {
		case <-time.After(lookPause/2 + rand.N(lookPause)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// lookAtAll checks the slots once, and returns the members that have one.
func lookAtAll(ctx context.Context, b *backend, k slotKind, which []int, at lookAt) (members []Member, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	busy := make(chan struct{}, lookers)
	for _, i := range which {
		busy <- struct{}{}
		wg.Go(func() {
			defer func() { <-busy }()
			held, lookErr := at(ctx, b, k, i)
			mu.Lock()
			defer mu.Unlock()
			if lookErr != nil {
				err = lookErr
			} else if held != nil {
				members = append(members, *held)
			}
		})
	}
	wg.Wait()
	slices.SortFunc(members, func(a, b Member) int { return a.Slot - b.Slot })
	return members, err
}

// tryAt is like lookAt, but certain: it reports a slot as free only after
// acquiring it.
func (g *gate) tryAt(ctx context.Context, b *backend, k slotKind, slot int) (*Member, error) {
	r := g.d.ownRequest(slotName(k, slot))
	r.NoWait, r.TTL, r.Hold = true, g.d.nearestTTL(min(lookTTL, g.d.ttl)), lookPrefix+r.Hold
	l, err := b.Acquire(ctx, r)
	if err == nil {
		letGo(l)
		return nil, nil
	}
	if !errors.Is(err, driver.ErrLocked) || errors.Is(err, driver.ErrUnknown) {
		return nil, err
	}
	m, err := describe(ctx, b, k, slot)
	if m == nil || err != nil {
		// the slot has just been released, or the backend does not report
		// holders
		return &Member{Phase: k.phase(), Slot: slot, passing: err == nil}, nil
	}
	return m, nil
}

// describe is like lookAt, but changes nothing.
func describe(ctx context.Context, b *backend, k slotKind, slot int) (*Member, error) {
	inspector, ok := b.Driver.(driver.Inspector)
	if !ok {
		return nil, fmt.Errorf("migrate: backend %s does not report the holders of locks: %w", b.info.Name, errors.ErrUnsupported)
	}
	s, err := inspector.Inspect(ctx, slotName(k, slot))
	if err != nil || !s.Held {
		return nil, err
	}
	return &Member{Phase: k.phase(), Wants: k == wantsOld, Slot: slot, Hold: s.Hold, Owner: s.Owner,
		passing: strings.HasPrefix(s.Hold, lookPrefix)}, nil
}

// ID returns the prefix of the identities of all holds that the driver makes on
// its own behalf, including a membership.
func (d *Driver) ID() string { return d.id }

// Members returns the processes in PhaseOld and in PhaseNew of the gated
// procedure, and the processes that want to be in PhaseOld and are refused.
// Processes in PhaseDual are not members. Members changes nothing and is as
// exact as Inspect on the backends. A change of phase does not rely on Members.
func (d *Driver) Members(ctx context.Context) ([]Member, error) {
	if d.gate == nil {
		return nil, fmt.Errorf("migrate: members are known only with a gate: %w", errors.ErrUnsupported)
	}
	var all []Member
	for _, k := range []slotKind{inOld, wantsOld, inNew} {
		members, err := d.gate.look(ctx, d.gate.own(k.phase()), k, describe)
		if err != nil {
			return nil, err
		}
		all = append(all, members...)
	}
	return all, nil
}
