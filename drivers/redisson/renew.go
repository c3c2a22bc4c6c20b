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
	renewKeys   = 250  // in one run of the script, which nothing else can interrupt
	renewAtOnce = 4000 // in one request, of several runs
	renewRuns   = 1000 // runs in one request; from 2000 on the library takes another connection
)

// due is a lease that is to be renewed.
type due struct {
	index int // in the leases of RenewAll
	slot  uint16
	lease *lease
	renewal
}

// RenewAll implements driver.BatchRenewer: in few requests, in a cluster side by side to each node.
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	names := make(map[string]struct{}, len(leases))
	groups := make(map[string][]due) // by node
	var twice []due
	if d.cluster {
		d.sortOut(ctx)
	}
	for i, held := range leases {
		x := due{index: i, lease: held.(*lease)}
		name := x.lease.request.Name
		if _, ok := names[name]; ok {
			twice = append(twice, x)
			continue
		}
		names[name] = struct{}{}
		node := ""
		if d.cluster {
			x.slot = slotOf(name)
			node = d.nodes.owner(x.slot)
		}
		groups[node] = append(groups[node], x)
	}
	var wg sync.WaitGroup
	for node, group := range groups {
		if len(groups) == 1 {
			d.renewGroup(ctx, node, group, done)
			continue
		}
		wg.Go(func() { d.renewGroup(ctx, node, group, done) })
	}
	wg.Wait()
	for _, x := range twice {
		done(x.index, x.lease.Renew(ctx, x.lease.request.TTL))
	}
}

// sortOut sees to it that the nodes of leases are known. What is out of date does for now; with nothing, all leases go as one group.
func (d *Driver) sortOut(ctx context.Context) {
	if d.nodes.known() {
		d.spawn(func() { _ = d.nodes.refresh(d.life, topologyAge) })
		return
	}
	_ = d.nodes.refresh(ctx, topologyAge)
}

// renewGroup renews leases that live on one node.
func (d *Driver) renewGroup(ctx context.Context, node string, group []due, done func(i int, err error)) {
	slices.SortFunc(group, func(a, b due) int { return cmp.Compare(a.slot, b.slot) })
	client := d.client
	if d.cluster && d.options.WaitReplicas > 0 {
		if client = d.client.Nodes()[node]; client == nil {
			d.nodes.expire()
			for _, x := range group {
				done(x.index, fmt.Errorf("%w: node %q of the cluster is not known", driver.ErrUnavailable, node))
			}
			return
		}
	}
	for len(group) > 0 {
		n := min(len(group), renewAtOnce)
		if d.cluster {
			n = min(n, renewRuns)
		}
		d.renewSome(ctx, client, group[:n], done)
		group = group[n:]
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
	calls := d.renewCalls(sent)
	results, acks := d.evalAll(ctx, client, renewScript, calls, d.options.WaitReplicas)
	for i, result := range results {
		n := len(calls[i].keys)
		d.renewed(ctx, sent[:n], result, acks, done)
		sent = sent[n:]
	}
}

// renewCalls puts leases together that one run of the script may renew.
func (d *Driver) renewCalls(sent []due) []call {
	calls := make([]call, 0, 1+len(sent)/renewKeys)
	for len(sent) > 0 {
		n := 1
		for n < len(sent) && n < renewKeys && sent[n].slot == sent[0].slot {
			n++
		}
		c := call{make([]string, n), make([]string, 0, 2*n)}
		for i, x := range sent[:n] {
			r := x.lease.request
			c.keys[i] = r.Name
			c.args = append(c.args, r.Hold, d.milliseconds(r.TTL))
		}
		calls = append(calls, c)
		sent = sent[n:]
	}
	return calls
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
