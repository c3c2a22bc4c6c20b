package redisson

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

const (
	renewKeys   = 250  // in one run of the script, which nothing can interrupt
	renewAtOnce = 4000 // in one request, of several runs
	renewArgs   = 3    // for each lease
	renewRuns   = 1000 // in one request; from 2000 on the library takes another connection
)

// due is a lease whose renewal is due.
type due struct {
	index int // in the leases of RenewAll
	slot  uint16
	lease *lease
	renewal
}

func (x due) permits() bool { return x.lease.request.Mode == driver.Permit }

// goesWith reports whether a run of a script can renew x and the next lease, too: locks of one slot, or permits of one name.
func (x due) goesWith(next due) bool {
	if x.permits() || next.permits() {
		return x.permits() && next.permits() && x.lease.request.Name == next.lease.request.Name
	}
	return x.slot == next.slot
}

// round is the memory for one run of RenewAll.
type round struct {
	names map[string]struct{}
	due   []due // those of permits last, by name
	twice []due // leases of names that are in due
}

var rounds = sync.Pool{New: func() any { return &round{names: make(map[string]struct{})} }}

func (r *round) free() {
	clear(r.names)
	clear(r.due)
	r.due, r.twice = r.due[:0], nil
	rounds.Put(r)
}

// RenewAll implements driver.BatchRenewer with few requests; in a cluster, with a request to each node side by side.
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	r := rounds.Get().(*round)
	defer r.free()
	var permits []due
	for i, held := range leases {
		x := due{index: i, lease: held.(*lease)}
		if x.permits() {
			permits = append(permits, x)
			continue
		}
		name := x.lease.request.Name
		if _, twice := r.names[name]; twice {
			r.twice = append(r.twice, x)
			continue
		}
		r.names[name] = struct{}{}
		r.due = append(r.due, x)
	}
	slices.SortFunc(permits, func(a, b due) int { return cmp.Compare(a.lease.request.Name, b.lease.request.Name) })
	r.due = append(r.due, permits...)
	if d.cluster {
		d.renewCluster(ctx, r.due, done)
	} else {
		d.renewNode(ctx, "", r.due, done)
	}
	for _, x := range r.twice {
		done(x.index, x.lease.Renew(ctx, x.lease.request.TTL))
	}
}

// renewCluster renews leases, grouped by node. The groups follow what is known of the nodes, even if that is out of date: then some leases
// wait for nodes of others. While nothing is known, all leases go together.
func (d *Driver) renewCluster(ctx context.Context, all []due, done func(i int, err error)) {
	if d.nodes.known() {
		d.life.Go(func() { _ = d.nodes.refresh(d.life.Context(), topologyAge) })
	} else {
		_ = d.nodes.refresh(ctx, topologyAge)
	}
	groups := make(map[string][]due)
	for _, x := range all {
		x.slot = slotOf(x.lease.request.Name)
		node := d.nodes.owner(x.slot)
		groups[node] = append(groups[node], x)
	}
	var wg sync.WaitGroup
	for node, group := range groups {
		slices.SortStableFunc(group, func(a, b due) int { return cmp.Compare(a.slot, b.slot) })
		wg.Go(func() { d.renewNode(ctx, node, group, done) })
	}
	wg.Wait()
}

// renewNode renews leases that live on one node.
func (d *Driver) renewNode(ctx context.Context, node string, group []due, done func(i int, err error)) {
	client, limit := d.client, renewAtOnce
	if d.cluster {
		limit = renewRuns
	}
	if d.cluster && d.options.WaitReplicas > 0 {
		if client = d.client.Nodes()[node]; client == nil {
			d.nodes.expire()
			for _, x := range group {
				done(x.index, fmt.Errorf("%w: node %q of the cluster is not known", driver.ErrUnavailable, node))
			}
			return
		}
	}
	for some := range slices.Chunk(group, limit) {
		d.renewSome(ctx, client, some, done)
	}
}

// renewSome renews leases in one request.
func (d *Driver) renewSome(ctx context.Context, client rueidis.Client, some []due, done func(i int, err error)) {
	if err := ctx.Err(); err != nil {
		for _, x := range some {
			done(x.index, err)
		}
		return
	}
	at := d.now()
	sent := some[:0]
	for _, x := range some {
		var ok bool
		if x.renewal, ok = x.lease.beginRenewal(at, x.lease.request.TTL); ok {
			sent = append(sent, x)
		} else {
			done(x.index, driver.ErrNotHeld)
		}
	}
	if len(sent) == 0 {
		return
	}
	calls, counts := d.renewCalls(sent)
	results, acks := d.evalAll(ctx, client, calls, d.options.WaitReplicas)
	for i, result := range results {
		d.renewed(ctx, sent[:counts[i]], result, acks, done)
		sent = sent[counts[i]:]
	}
}

// renewCalls puts together the leases that one run of a script may renew, and returns how many each of the runs renews.
func (d *Driver) renewCalls(sent []due) (calls []call, counts []int) {
	calls, counts = make([]call, 0, 1+len(sent)/renewKeys), make([]int, 0, 1+len(sent)/renewKeys)
	keys, args := make([]string, 0, len(sent)), make([]string, 0, renewArgs*len(sent))
	n, members := 0, 0
	for i, x := range sent {
		r := x.lease.request
		args = x.lease.renewArgs(args, r.TTL)
		n, members = n+1, members+r.Permits
		if !x.permits() {
			keys = append(keys, r.Name)
		}
		if i+1 < len(sent) && n < renewKeys && members < maxPermits && x.goesWith(sent[i+1]) {
			continue
		}
		c := call{renewScript, keys, args}
		if x.permits() {
			c.script, c.keys = permitRenewScript, permitKeys(r.Name, nil)
		}
		calls, counts = append(calls, c), append(counts, n)
		keys, args = keys[len(keys):], args[len(args):]
		n, members = 0, 0
	}
	return calls, counts
}

// renewed takes the answer for leases that were renewed together.
func (d *Driver) renewed(ctx context.Context, sent []due, result rueidis.RedisResult, acks int, done func(i int, err error)) {
	answers, err := result.ToString()
	if err == nil && len(answers) != len(sent) {
		err = errAnswer
	}
	if err != nil && d.cluster {
		d.nodes.expire()
	}
	for i, x := range sent {
		if err != nil {
			done(x.index, x.lease.failRenewal(ctx, x.renewal, err))
		} else {
			done(x.index, x.lease.endRenewal(x.renewal, answers[i], acks))
		}
	}
}
