package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

// maxRenewals is how many leases go into one request.
const maxRenewals = 512

var (
	errAnswer = errors.New("the answer of the script makes no sense")
	errLate   = errors.New("nobody waits for the renewal any more")
)

// renewal renews leases of different names for one TTL, on all nodes.
type renewal struct {
	driver *Driver
	leases []*lease
	at     int64
	ttl    time.Duration
	keys   []string
	args   []string
	done   chan struct{} // closed when all leases are decided, or all nodes have answered
	late   atomic.Bool   // nobody waits for the renewal any more

	mu      sync.Mutex
	yes, no []int8
	pending int // nodes
	ended   bool
	err     error // of a node
	doubt   bool  // an answer is missing
}

// Renew implements driver.Lease. With a TTL of 0 the script changes nothing.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	var outcome error
	l.driver.renew(ctx, []*lease{l}, ttl, func(_ int, err error) { outcome = err })
	return outcome
}

// RenewAll implements driver.BatchRenewer.
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	var wg sync.WaitGroup
	groups := make(map[time.Duration]*group)
	for i, dl := range leases {
		l := dl.(*lease)
		g := groups[l.request.TTL]
		if g == nil {
			g = &group{names: make(map[string]struct{}, min(len(leases), maxRenewals))}
			groups[l.request.TTL] = g
		}
		if !g.fits(l) {
			d.spawnRenewal(ctx, &wg, g, done)
		}
		g.add(i, l)
	}
	for _, g := range groups {
		d.spawnRenewal(ctx, &wg, g, done)
	}
	wg.Wait()
}

// group has leases of different names and of one TTL, with their indices in RenewAll.
type group struct {
	leases []*lease
	index  []int
	names  map[string]struct{}
}

func (g *group) fits(l *lease) bool {
	_, twice := g.names[l.request.Name]
	return !twice && len(g.leases) < maxRenewals
}

func (g *group) add(i int, l *lease) {
	g.leases, g.index = append(g.leases, l), append(g.index, i)
	g.names[l.request.Name] = struct{}{}
}

// spawnRenewal renews the leases of the group, and empties it.
func (d *Driver) spawnRenewal(ctx context.Context, wg *sync.WaitGroup, g *group, done func(i int, err error)) {
	leases, index := g.leases, g.index
	g.leases, g.index = nil, nil
	clear(g.names)
	wg.Go(func() { // ends with ctx at the latest
		d.renew(ctx, leases, leases[0].request.TTL, func(i int, err error) { done(index[i], err) })
	})
}

// renew renews leases of different names, and calls done once for each, with its index.
func (d *Driver) renew(ctx context.Context, leases []*lease, ttl time.Duration, done func(i int, err error)) {
	r := &renewal{
		driver: d, leases: make([]*lease, 0, len(leases)), at: d.now(), ttl: ttl, done: make(chan struct{}), pending: len(d.nodes),
		keys: make([]string, 0, len(leases)), args: make([]string, 1, 1+len(leases)),
	}
	r.args[0] = strconv.FormatInt(milliseconds(ttl), 10)
	which := make([]int, 0, len(leases))
	for i, l := range leases {
		if !l.beginRenewal(r.at, ttl) {
			done(i, driver.ErrNotHeld)
			continue
		}
		r.leases, which = append(r.leases, l), append(which, i)
		r.keys, r.args = append(r.keys, l.request.Name), append(r.args, l.value)
	}
	if len(r.leases) == 0 {
		return
	}
	r.yes, r.no = make([]int8, len(r.leases)), make([]int8, len(r.leases))
	for _, n := range d.nodes {
		if !n.add(r) {
			r.answer(n, rueidis.RedisResult{}, notSent{driver.ErrClosed})
		}
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		r.late.Store(true)
	}
	for i, l := range r.leases {
		done(which[i], r.outcome(ctx, i, l))
	}
}

// weight implements task.
func (r *renewal) weight() int { return len(r.leases) }

// command implements task. A late renewal is not sent: if nodes are slower than renewals fall due, a late one would delay useful ones.
func (r *renewal) command(n *node, _ int64) (rueidis.Completed, bool) {
	if r.late.Load() {
		r.answer(n, rueidis.RedisResult{}, notSent{errLate})
		return rueidis.Completed{}, false
	}
	if err := n.countsNow(); err != nil {
		r.answer(n, rueidis.RedisResult{}, notSent{err})
		return rueidis.Completed{}, false
	}
	b := n.client.B()
	return b.Evalsha().Sha1(renewScript.sha).Numkeys(int64(len(r.keys))).Key(r.keys...).Arg(r.args...).Build(), true
}

// answer implements task.
func (r *renewal) answer(n *node, result rueidis.RedisResult, err error) {
	text := ""
	if err == nil {
		text, err = result.ToString()
	}
	if err == nil && len(text) != len(r.leases) {
		err = errAnswer
	}
	if err == nil {
		err = n.countsNow()
	}
	if err == nil {
		r.noteAbsent(n, text)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending--
	if err != nil {
		r.err = n.of(refusal(err))
		r.doubt = r.doubt || !errors.As(err, new(notSent))
	} else {
		for i := range r.leases {
			if text[i] == '1' {
				r.yes[i]++
			} else {
				r.no[i]++
			}
		}
	}
	if !r.ended && (r.pending == 0 || r.decided()) {
		r.ended = true
		close(r.done)
	}
}

// noteAbsent notes for which leases a node does not have the value any more.
func (r *renewal) noteAbsent(n *node, answers string) {
	for i, l := range r.leases {
		if answers[i] == '1' {
			continue
		}
		l.mu.Lock()
		if v := &l.votes[n.index]; v.state == granted && l.phase == held {
			v.state = refused
		}
		l.mu.Unlock()
	}
}

// decided reports whether the missing answers do not matter. The caller holds mu.
func (r *renewal) decided() bool {
	quorum, all := r.driver.quorum, len(r.driver.nodes)
	for i := range r.leases {
		if int(r.yes[i]) < quorum && int(r.no[i]) <= all-quorum {
			return false
		}
	}
	return true
}

// outcome is the outcome of the renewal of one lease.
func (r *renewal) outcome(ctx context.Context, i int, l *lease) error {
	d := r.driver
	r.mu.Lock()
	yes, no, err, doubt := int(r.yes[i]), int(r.no[i]), r.err, r.doubt
	r.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	// Each node handles renewals in the order of their requests, but renewals that overlap may have been queued in different orders.
	shortest := l.shortest
	if r.ttl > 0 {
		l.renewing--
	}
	if l.renewing == 0 {
		l.shortest = 0
	}
	switch {
	case l.phase != held:
		return driver.ErrNotHeld
	case yes >= d.quorum && r.ttl == 0:
		return nil
	case yes >= d.quorum:
		expires := l.expires.Load()
		if d.now() >= expires {
			return fmt.Errorf("%w: the answers came after the end of the lease", driver.ErrUnknown)
		}
		l.expires.Store(max(expires, r.at+min(int64(r.ttl), shortest)))
		l.ttl = r.ttl
		l.rejoin()
		return nil
	case no > len(d.nodes)-d.quorum:
		l.undo()
		l.phase = over
		defer d.forget(l)
		return driver.ErrNotHeld
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	case err == nil:
		return fmt.Errorf("%w: too few nodes answered", driver.ErrUnavailable)
	case doubt:
		return fmt.Errorf("%w: too few nodes answered, the last because of: %w", driver.ErrUnknown, err)
	}
	return fmt.Errorf("%w: too few nodes answered, the last because of: %w", driver.ErrUnavailable, err)
}

// beginRenewal notes that a renewal is about to be sent, unless the lease is over. From here on the hold may end as early as this
// renewal says, whatever its outcome.
func (l *lease) beginRenewal(at int64, ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	expires := l.expires.Load()
	if l.phase != held || at >= expires {
		return false
	}
	if ttl == 0 {
		return true
	}
	if l.shortest == 0 || int64(ttl) < l.shortest {
		l.shortest = int64(ttl)
	}
	l.renewing++
	l.lasts = max(l.lasts, at+int64(ttl))
	l.expires.Store(min(expires, at+int64(ttl)))
	return true
}

// rejoin asks nodes without the value, such as a restarted node, to set the value again, so a renewed hold survives a restart of all nodes,
// one after the other. The caller holds mu, after a majority has confirmed the hold.
func (l *lease) rejoin() {
	for i := range l.votes {
		v := &l.votes[i]
		if (v.state == failed || v.state == refused) && !v.node().impaired() {
			v.ask()
			v.hand()
		}
	}
}
