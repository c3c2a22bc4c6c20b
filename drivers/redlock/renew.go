package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// maxRenewals is the maximum number of leases in one request.
const maxRenewals = 512

// renewal renews leases for one TTL, on all nodes.
type renewal struct {
	driver *Driver
	leases []*lease
	terms  []redisdriver.Renewal // the terms of the leases
	ttl    time.Duration
	keys   []string
	args   []string
	done   chan struct{} // closed when all leases are decided, or all nodes have answered
	late   atomic.Bool   // no caller is waiting for the renewal

	mu      sync.Mutex
	yes, no []int8
	pending int // nodes
	ended   bool
	err     error // error of a node
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
	byTTL := make(map[time.Duration][]int)
	for i, l := range leases {
		ttl := l.(*lease).request.TTL
		byTTL[ttl] = append(byTTL[ttl], i)
	}
	var wg sync.WaitGroup
	for ttl, all := range byTTL {
		for some := range slices.Chunk(all, maxRenewals) {
			wg.Go(func() { // ends when ctx ends at the latest
				these := make([]*lease, len(some))
				for i, at := range some {
					these[i] = leases[at].(*lease)
				}
				d.renew(ctx, these, ttl, func(i int, err error) { done(some[i], err) })
			})
		}
	}
	wg.Wait()
}

// renew renews leases and calls done once for each, with its index.
func (d *Driver) renew(ctx context.Context, leases []*lease, ttl time.Duration, done func(i int, err error)) {
	r := &renewal{
		driver: d, leases: make([]*lease, 0, len(leases)), ttl: ttl, done: make(chan struct{}), pending: len(d.nodes),
		keys: make([]string, 0, len(leases)), args: make([]string, 1, 1+len(leases)),
	}
	r.args[0] = redisdriver.TTLText(ttl)
	which := make([]int, 0, len(leases))
	at := d.life.Now()
	for i, l := range leases {
		term, ok := l.Begin(at, ttl)
		if !ok {
			done(i, driver.ErrNotHeld)
			continue
		}
		r.leases, r.terms, which = append(r.leases, l), append(r.terms, term), append(which, i)
		r.keys, r.args = append(r.keys, l.request.Name), append(r.args, l.value)
	}
	if len(r.leases) == 0 {
		return
	}
	r.yes, r.no = make([]int8, len(r.leases)), make([]int8, len(r.leases))
	for _, n := range d.nodes {
		if !n.add(r) {
			r.answer(n, rueidis.RedisResult{}, redisdriver.NotSent{Why: driver.ErrClosed})
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

// command implements task. A late renewal is not sent: if nodes are slower than
// renewals become due, it would delay useful renewals.
func (r *renewal) command(n *node, _ int64) (rueidis.Completed, bool) {
	err := n.countsNow()
	if r.late.Load() {
		err = errors.New("no caller is waiting for the renewal")
	}
	if err != nil {
		r.answer(n, rueidis.RedisResult{}, redisdriver.NotSent{Why: err})
		return rueidis.Completed{}, false
	}
	b := n.client.B()
	return renewScript.Call(r.keys, r.args...).Command(b), true
}

func (r *renewal) answer(n *node, result rueidis.RedisResult, err error) {
	text := ""
	if err == nil {
		text, err = result.ToString()
	}
	if err == nil && len(text) != len(r.leases) {
		err = redisdriver.ErrAnswer
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
		r.doubt = r.doubt || !errors.As(err, new(redisdriver.NotSent))
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

// noteAbsent records the leases whose value a node no longer has.
func (r *renewal) noteAbsent(n *node, answers string) {
	for i, l := range r.leases {
		if answers[i] == '1' {
			continue
		}
		l.Mu.Lock()
		if v := &l.votes[n.index]; v.state == granted && l.Phase == redisdriver.Held {
			v.state = refused
		}
		l.Mu.Unlock()
	}
}

// decided reports whether the outcome no longer depends on the missing answers.
// The caller holds mu.
func (r *renewal) decided() bool {
	quorum, all := r.driver.quorum, len(r.driver.nodes)
	for i := range r.leases {
		if int(r.yes[i]) < quorum && int(r.no[i]) <= all-quorum {
			return false
		}
	}
	return true
}

// outcome returns the outcome of the renewal of one lease.
func (r *renewal) outcome(ctx context.Context, i int, l *lease) error {
	d := r.driver
	r.mu.Lock()
	yes, no, err, doubt := int(r.yes[i]), int(r.no[i]), r.err, r.doubt
	r.mu.Unlock()
	l.Mu.Lock()
	defer l.Mu.Unlock()
	defer l.Term.Answered(r.terms[i]) // overlapping renewals may have been queued in different orders
	switch {
	case l.Phase != redisdriver.Held:
		return driver.ErrNotHeld
	case yes >= d.quorum && r.ttl == 0:
		return nil
	case yes >= d.quorum:
		if err := l.Term.Renewed(r.terms[i], d.life.Now()); err != nil {
			return err
		}
		l.ttl = r.ttl
		l.rejoin()
		return nil
	case no > len(d.nodes)-d.quorum:
		l.undo()
		l.Phase = redisdriver.Over
		defer d.life.Remove(l)
		return driver.ErrNotHeld
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	case err == nil:
		return fmt.Errorf("%w: too few nodes answered", driver.ErrUnavailable)
	case doubt:
		return fmt.Errorf("%w: too few nodes answered; the last error: %w", driver.ErrUnknown, err)
	}
	return fmt.Errorf("%w: too few nodes answered; the last error: %w", driver.ErrUnavailable, err)
}

// rejoin makes nodes without the value, such as a restarted node, set the value
// again. So a renewed hold survives a restart of all nodes one after another.
// The caller holds Mu, after a majority has confirmed the hold.
func (l *lease) rejoin() {
	for i := range l.votes {
		v := &l.votes[i]
		if (v.state == failed || v.state == refused) && !v.node().impaired() {
			v.prepare()
			v.hand()
		}
	}
}
