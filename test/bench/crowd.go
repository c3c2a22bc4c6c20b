package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Crowds is the curve of one name that many clients want, each with connections of its own.
var Crowds = (&Curve{
	Name: "crowds", Title: "One name that many clients want", By: "clients", Apart: true, About: aboutCrowds(),
}).add(func(clients float64) *Workload {
	return &Workload{
		Number: 14, Plot: "hand-overs/s", Metrics: append(slices.Clone(processes.Metrics), Metric{Name: "requests/arrival"}, Metric{Name: "requests/s of who waits"}),
		Measure: func(b *bed, r *Row, _ int) (Sample, error) { return measureCrowd(b, r, int(clients)) },
	}
}, 2, 10, 50, 200, 1000)

// Sizes of a whole run of Crowds, and of one that shows only that everything works. The slice is for two clients.
var (
	FullCrowds  = Size{Rounds: 1, Slice: time.Second, Warm: 3 * time.Second, Settle: 500 * time.Millisecond}
	ShortCrowds = Size{Rounds: 1, Slice: 300 * time.Millisecond, Settle: 50 * time.Millisecond, Points: 2, PeersFail: true}
)

const (
	crowdProcesses = 4
	crowdHold      = time.Millisecond
	crowdTurns     = 7 * time.Millisecond  // by which each client makes a round longer, so that a large crowd has its turns as well
	crowdComes     = 20 * time.Millisecond // how much longer each client may take to wait
)

func aboutCrowds() string {
	length := func(d, each time.Duration) string { return fmt.Sprintf("%v, and %v for each client", d, each) }
	whole := func(d time.Duration) time.Duration { return d + d/counting }
	return fmt.Sprintf(`N clients, each with connections of its own, want one name, keep it for 1 ms, give it back and want it again, so there can be no more than a thousand
hand-overs a second less what a timer is late. The clients are in up to %d processes.

Before the clients call, another one takes the name, and keeps it until all of them wait. What the start takes is a figure of its own: requests/arrival is what the server gets for each
client from the first call until then, what keeps sessions alive meanwhile included; and so is what a client sends in a second that waits, while nobody is granted the name. A crowd is taken to wait once each CPU of the machine was idle for half of %v; libraries that poll are never quiet, so that takes at most %s.
For them requests/arrival is how often they poll meanwhile.

Everything else is once all wait, from the release of that other client on. Requests are counted at the server during the first fifth of the time, as counting makes it slower, and hand-overs a second
during the rest. Requests of those who wait count as well: with many clients and few hand-overs they are most of requests/hand-over.

Jain's index is over clients: 1 if all got the name equally often. It and the longest wait are of all of the time, %s. In a queue a client has a turn after N hand-overs. Where
there is time for one or two turns of each client, the index may be 0.9 although nobody passes another client by. Where there were fewer hand-overs than clients, no index can be larger than their ratio:
then it says how slow the row is, and not how fair. A longest wait that is longer than the time is that of a client which did not get the name at all.

PostgreSQL looks for a deadlock when a wait is a second old (deadlock_timeout). Such a look took 0.4 ms of CPU time with 200 who wait and 19 ms with 1,000, and nobody gets or gives back a lock
meanwhile. So where a round takes more than a second, with some 700 clients, there are hardly more hand-overs than such looks. dsync turns them off for its sessions that wait, if its role may: the
rows but for one are those of a superuser.`,
		crowdProcesses, FullCrowds.Settle, length(2*FullCrowds.Settle, crowdComes), length(whole(FullCrowds.Slice), whole(crowdTurns)))
}

// measureCrowd leaves no client behind: those of a thousand would keep their sessions alive beside the next row.
func measureCrowd(b *bed, r *Row, clients int) (s Sample, err error) {
	c, err := b.start(r, shares(clients, min(clients, crowdProcesses))...)
	if err != nil {
		return nil, err
	}
	defer c.kill()
	o := bout{Name: r.key("crowd", clients), Hold: crowdHold}
	release, err := b.take(r, o.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	requests := b.servers.Counter(b.tb)
	defer requests.stop()
	first, each := requests.read(), Sample{}
	all, err := c.fight(b, o, func() error {
		untilIdle(b.size.Settle, 2*b.size.Settle+time.Duration(clients)*crowdComes)
		come, at := requests.read(), time.Now()
		_ = pause(context.Background(), 2*b.size.Settle) // ends by itself
		waited := requests.read()
		each["requests/arrival"] = float64(come-first) / float64(clients)
		each["requests/s of who waits"] = float64(waited-come) / float64(clients) / time.Since(at).Seconds()
		return nil
	}, func() error {
		if err := release(); err != nil {
			return err
		}
		s = b.watch(b.size.Slice+time.Duration(clients)*crowdTurns, requests)
		return nil
	})
	for _, p := range c {
		if err == nil {
			err = p.Wait()
		}
	}
	if err == nil {
		err = b.closeClients()
	}
	if err != nil {
		return nil, err
	}
	maps.Copy(s, each)
	s["Jain"], s["max wait ms"] = jain(all.Counts), millis(all.MaxWait)
	return s, nil
}

// take has a client of the bed keep a name until release is called, which may be called again.
func (b *bed) take(r *Row, name string) (release func() error, err error) {
	clients, err := b.lockers(r, 1)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	held, err := clients[0].Lock(ctx, name)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("lock: %w", err)
	}
	b.guard.enter()
	k := &keeper{locker: clients[0]}
	k.add(held)
	renewals := make(chan error, 1)
	go func() { renewals <- k.run(ctx) }() // ends with ctx
	return sync.OnceValue(func() error {
		k.stop()
		b.guard.leave()
		err := held.Release(ctx)
		cancel()
		if err != nil {
			err = fmt.Errorf("release: %w", err)
		}
		return errors.Join(err, <-renewals)
	}), nil
}

// shares divides n among parts, as evenly as may be.
func shares(n, parts int) []int {
	all := make([]int, parts)
	for i := range all {
		all[i] = (n + i) / parts
	}
	return all
}
