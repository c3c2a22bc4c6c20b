package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// bench holds two clients on a backend, and the limits on their load.
type bench struct {
	*benchFlags
	clients [2]*dsync.Client
	pace    *pacer
	longest time.Duration // number of locks and unlocks in the first workload
}

// close closes all open clients.
func (b *bench) close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cli.CloseLimit)
	defer cancel()
	for _, c := range b.clients {
		if c != nil {
			err = errors.Join(err, c.Close(ctx))
		}
	}
	return err
}

// measureAll runs the workloads one after the other.
func (b *bench) measureAll(ctx context.Context, out io.Writer) (*benchReport, error) {
	r := &benchReport{Rate: b.rate, Seconds: b.lasting.Seconds()}
	shown := cli.NewProgress(out, "measuring", len(workloads))
	defer shown.Stop()
	for i, w := range workloads {
		m, err := b.measure(ctx, w)
		if err != nil {
			return r, err
		}
		m.Workload = i + 1
		r.Workloads = append(r.Workloads, m)
		shown.Add()
	}
	return r, nil
}

// workload is one way to use locks.
type workload struct {
	title string
	of    string // the operation that is timed

	// run performs operations until the end time and returns the duration of
	// each. Operations in progress at that time are completed.
	run func(b *bench, ctx context.Context, end time.Time) ([]time.Duration, error)

	settles bool // most of the time passes without locks, so the number of locks is meaningless
}

// workloads are the workloads of docs/performance.md, with the same numbers.
var workloads = []workload{
	{title: "a free lock, one caller", of: "lock and unlock", run: func(b *bench, ctx context.Context, end time.Time) ([]time.Duration, error) {
		took, err := b.crowd(ctx, end, 1, false, 1)
		b.longest = slices.Max(append(took, 0))
		return took, err
	}},
	{title: "free locks, a name for each caller", of: "lock and unlock", run: func(b *bench, ctx context.Context, end time.Time) ([]time.Duration, error) {
		return b.crowd(ctx, end, b.callers, false, 1)
	}},
	{title: "one hot lock, one client", of: "wait", run: func(b *bench, ctx context.Context, end time.Time) ([]time.Duration, error) {
		return b.crowd(ctx, end, min(b.callers, hotCallers), true, 1)
	}},
	{title: "two clients in turn", of: "unlock to grant", settles: true, run: (*bench).handOvers},
	{title: "one hot lock, two clients", of: "wait", run: func(b *bench, ctx context.Context, end time.Time) ([]time.Duration, error) {
		return b.crowd(ctx, end, max(2, min(b.callers, hotCallers)), true, 2)
	}},
}

const hotCallers = 32

// measure runs a workload. It returns an error if a lock is not granted within
// --connect after the end.
func (b *bench) measure(ctx context.Context, w workload) (measured, error) {
	began := time.Now()
	end := began.Add(b.lasting)
	bound, cancel := context.WithDeadline(ctx, end.Add(b.Connect))
	defer cancel()
	took, err := w.run(b, bound, end)
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", ctx.Err())
	}
	if err != nil {
		return measured{}, fmt.Errorf("%s: %w", w.title, err)
	}
	m := measured{Title: w.title, Of: w.of, Locks: len(took), P50Msec: cli.Milliseconds(percentile(took, 0.5)), P99Msec: cli.Milliseconds(percentile(took, 0.99))}
	if !w.settles {
		m.PerSecond = math.Round(10*float64(len(took))/time.Since(began).Seconds()) / 10
		m.Bounded = b.rate > 0 && m.PerSecond >= 0.9*float64(b.rate)
	}
	return m, nil
}

// percentile returns the smallest duration that is not exceeded by at least a
// share p of the durations.
func percentile(took []time.Duration, p float64) time.Duration {
	slices.Sort(took)
	return took[max(0, int(math.Ceil(p*float64(len(took))))-1)]
}

// crowd lets callers of some clients acquire and release locks. If all callers
// share one lock, crowd returns the durations of their waits. If each caller
// has its own lock, crowd returns the durations of whole cycles.
func (b *bench) crowd(ctx context.Context, end time.Time, callers int, hot bool, clients int) ([]time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	took := make([][]time.Duration, callers)
	var holders atomic.Int32 // duration of waits for the hot lock
	var all sync.WaitGroup
	for i := range callers {
		client, name := b.clients[i%clients], b.name(i)
		if hot {
			name = b.name(0)
		}
		all.Go(func() { // ends at the deadline, or with ctx
			for b.pace.wait(ctx, end) || first(ctx, i, took[i]) {
				start := time.Now()
				lease, err := client.Lock(ctx, name)
				wait := time.Since(start)
				if err == nil {
					if hot {
						if holders.Add(1) > 1 {
							err = errNotExcluded
						}
						holders.Add(-1)
					}
					err = errors.Join(err, lease.Unlock(ctx))
				}
				if err != nil {
					stop(err)
					return
				}
				if !hot {
					wait = time.Since(start)
				}
				took[i] = append(took[i], wait)
			}
		})
	}
	all.Wait()
	return slices.Concat(took...), context.Cause(ctx)
}

// first reports whether the first caller has yet to complete its first
// operation. On a slow server, the time may run out before that.
func first(ctx context.Context, caller int, took []time.Duration) bool {
	return caller == 0 && len(took) == 0 && ctx.Err() == nil
}

var errNotExcluded = errors.New("two callers hold one lock at the same time: the clients of this URL do not exclude each other")

// settling is the time allowed for a request to the backend, in addition to the
// duration of a lock.
const settling = 5 * time.Millisecond

// handOvers measures how the two clients hand over a lock to each other.
func (b *bench) handOvers(ctx context.Context, end time.Time) (took []time.Duration, err error) {
	lease, err := b.clients[0].Lock(ctx, b.name(0))
	if err != nil {
		return nil, err
	}
	for next := 1; b.pace.wait(ctx, end) || first(ctx, 0, took); next = 1 - next {
		var d time.Duration
		if d, lease, err = b.handOver(ctx, lease, b.clients[next]); err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	if len(took) > 1 {
		took = took[1:] // the first hand-over creates the state that a client needs to wait
	}
	return took, lease.Unlock(ctx)
}

// handOver releases the lock while another client waits for it. It returns the
// time until the grant, and the other client's lease. If it returns an error,
// neither client holds the lock.
func (b *bench) handOver(ctx context.Context, lease *dsync.Lease, next *dsync.Client) (time.Duration, *dsync.Lease, error) {
	type grant struct {
		at    time.Time
		lease *dsync.Lease
		err   error
	}
	granted := make(chan grant)
	go func() { // ends when the lock is granted or ctx ends
		lease, err := next.Lock(ctx, b.name(0))
		granted <- grant{time.Now(), lease, err}
	}()
	var got grant
	early := false
	timer := time.NewTimer(settling + 2*b.longest)
	defer timer.Stop()
	select {
	case got = <-granted:
		early = true
	case <-timer.C:
	case <-ctx.Done():
	}
	start := time.Now()
	err := lease.Unlock(ctx)
	if !early {
		got = <-granted
	} else if got.err == nil {
		err = errors.Join(errNotExcluded, err)
	}
	if err = errors.Join(err, got.err); err != nil && got.lease != nil {
		err = errors.Join(err, got.lease.Unlock(ctx))
	}
	return got.at.Sub(start), got.lease, err
}

// pacer spreads calls evenly over time.
type pacer struct {
	every time.Duration // 0 means no limit
	mu    sync.Mutex
	next  time.Time // earliest time of the next call
}

func newPacer(rate int) *pacer {
	if rate == 0 {
		return &pacer{}
	}
	return &pacer{every: time.Second / time.Duration(rate)}
}

// wait waits for the caller's turn. It returns false if the turn would come
// after the end, or if ctx ends.
func (p *pacer) wait(ctx context.Context, end time.Time) bool {
	now := time.Now()
	turn := now
	if p.every > 0 {
		p.mu.Lock()
		if p.next.After(turn) {
			turn = p.next
		}
		if turn.Before(end) { // the other turns are for the callers of the next workload
			p.next = turn.Add(p.every)
		}
		p.mu.Unlock()
	}
	if !turn.Before(end) || ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(turn.Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
