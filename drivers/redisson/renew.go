package redisson

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

const (
	renewKeys   = 250  // in one run of the script, which nothing can interrupt
	renewAtOnce = 4000 // in one request, of several runs
	renewArgs   = 3    // for each lease
	renewRuns   = 1000 // in one request; for 2000 or more the library takes another connection
)

// due is a lease whose renewal is due.
type due struct {
	redisdriver.Renewal
	index int // in the leases of RenewAll
	slot  uint16
	lease *lease
	ttl   time.Duration
}

// permits returns the name of permits, and "" for a lock.
func (x due) permits() string {
	if x.lease.request.Mode == driver.Permit {
		return x.lease.request.Name
	}
	return ""
}

// compare returns 0 if one run of a script can renew x and y: locks of one
// slot, or permits of one name.
func (x due) compare(y due) int {
	return cmp.Or(cmp.Compare(x.slot, y.slot), cmp.Compare(x.permits(), y.permits()))
}

// RenewAll implements driver.BatchRenewer with few requests. In a cluster, it
// sends a request to each known node in parallel.
func (d *Driver) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	all := make([]due, len(leases))
	for i, held := range leases {
		l := held.(*lease)
		if all[i] = (due{index: i, lease: l, ttl: l.request.TTL}); d.cluster {
			all[i].slot = slotOf(l.request.Name)
		}
	}
	slices.SortStableFunc(all, due.compare)
	if !d.cluster {
		d.renewNode(ctx, "", all, done)
		return
	}
	if d.nodes.owner(all[0].slot) != "" { // renewals do not wait for the nodes
		d.life.Go(func() { _ = d.nodes.refresh(d.life.Context(), topologyAge) })
	} else {
		_ = d.nodes.refresh(ctx, topologyAge)
	}
	groups := make(map[string][]due)
	for _, x := range all {
		node := d.nodes.owner(x.slot)
		groups[node] = append(groups[node], x)
	}
	var wg sync.WaitGroup
	for node, group := range groups {
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
			d.nodes.Expire()
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

func (d *Driver) renewSome(ctx context.Context, client rueidis.Client, some []due, done func(i int, err error)) {
	if err := ctx.Err(); err != nil {
		for _, x := range some {
			done(x.index, err)
		}
		return
	}
	at := d.life.Now()
	sent := some[:0]
	for _, x := range some {
		ok := false
		if x.Renewal, ok = x.lease.Begin(at, x.ttl); ok {
			sent = append(sent, x)
		} else {
			done(x.index, driver.ErrNotHeld)
		}
	}
	if len(sent) == 0 {
		return
	}
	calls, counts := d.renewCalls(sent)
	replicas := d.options.WaitReplicas
	if sent[0].ttl == 0 { // this is the only request in the batch, and it changes nothing
		replicas = 0
	}
	results, acks := d.evalAll(ctx, client, calls, replicas)
	for i, result := range results {
		d.renewed(ctx, sent[:counts[i]], result, acks, done)
		sent = sent[counts[i]:]
	}
}

// renewCalls groups the leases that one run of a script may renew. It returns
// the number of leases that each run renews.
func (d *Driver) renewCalls(sent []due) (calls []redisdriver.Call, counts []int) {
	keys, args := make([]string, 0, len(sent)), make([]string, 0, renewArgs*len(sent))
	n, members := 0, 0
	for i, x := range sent {
		r := x.lease.request
		n, members = n+1, members+r.Permits
		script := renewScript
		if x.permits() != "" {
			script, keys = permitRenewScript, permitKeys(r.Name, keys[:0])
			args = append(permitArgs(r.Hold, r.Permits, args), redisdriver.TTLText(x.ttl))
		} else {
			keys = append(keys, r.Name)
			args = append(args, fieldOf(r.Mode, r.Hold), redisdriver.TTLText(x.ttl), timeoutKey(r.Mode, r.Name, r.Hold))
		}
		if i+1 < len(sent) && n < renewKeys && members < maxPermits && x.compare(sent[i+1]) == 0 {
			continue
		}
		calls, counts = append(calls, script.Call(keys, args...)), append(counts, n)
		keys, args = keys[len(keys):], args[len(args):]
		n, members = 0, 0
	}
	return calls, counts
}

// renewed handles the answer for leases that were renewed together.
func (d *Driver) renewed(ctx context.Context, sent []due, result rueidis.RedisResult, acks int, done func(i int, err error)) {
	answers, err := result.ToString()
	if err == nil && len(answers) != len(sent) {
		err = redisdriver.ErrAnswer
	}
	if err != nil && d.cluster {
		d.nodes.Expire()
	}
	if strings.IndexByte(answers, replicaAnswer) >= 0 {
		d.leaveServer()
	}
	for i, x := range sent {
		if err != nil {
			done(x.index, x.fail(ctx, err))
		} else {
			done(x.index, x.end(answers[i], acks))
		}
	}
}

// replicaAnswer is the answer from the renew script on a replica.
const replicaAnswer = 'r'

func (x *due) end(answer byte, acks int) error {
	l := x.lease
	d := l.driver
	l.Mu.Lock()
	defer l.Mu.Unlock()
	defer l.Term.Answered(x.Renewal)
	switch {
	case answer == '0':
		l.forget()
		return driver.ErrNotHeld
	case answer == 'p':
		return fmt.Errorf("%w: HEXISTS or PEXPIRE of key %q", fs.ErrPermission, l.request.Name)
	case answer == replicaAnswer:
		return fmt.Errorf("%w: the server is a replica, which renews no locks", driver.ErrUnavailable)
	case answer != '1':
		return fmt.Errorf("%w: key %q cannot be renewed", driver.ErrUnavailable, l.request.Name)
	case x.ttl > 0 && acks < d.options.WaitReplicas:
		return d.notReplicated(acks)
	}
	return l.Term.Renewed(x.Renewal, d.life.Now())
}

func (x *due) fail(ctx context.Context, err error) error {
	l := x.lease
	if l.driver.overwritten(ctx, l.request, err) {
		return l.gone()
	}
	err, doubt := redisdriver.Fault(ctx, l.request.Name, err)
	if !doubt {
		l.Mu.Lock()
		defer l.Mu.Unlock()
		l.Term.Refused(x.Renewal, l.driver.life.Now())
	}
	return err
}
