package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// heldTTL is the TTL of all locks, where a library has one. A process in its role has that of the size, if given.
var heldTTL = 6 * time.Second

// Metric is one of the figures that a workload yields.
type Metric struct {
	Name string // with the unit
	// More says that a larger value is better.
	More bool
}

// operations is how many there were in a round: no metric, but what others are divided by.
const operations = "operations"

// Sample has the value of each metric in one round.
type Sample map[string]float64

// Workload is something to do with locks. It is measured on a row at a time, in rounds.
type Workload struct {
	Number int
	Name   string // "1", "2 (64)": the key in tables of targets and notes
	Title  string
	File   string // of the plot
	Plot   string // the metric that is plotted, and whose ratio to the floor is in the table first

	Metrics []Metric

	// Measure runs one round.
	Measure func(b *bed, r *Row, round int) (Sample, error)

	// Once says that there is one round alone, on servers of its own for each row, and OursAlone that only dsync takes part.
	Once, OursAlone bool

	// Named says that only rows take part that name the workload.
	Named bool

	// Curve is what the workload is a point of, at a number; else it is nil.
	Curve *Curve
	At    float64

	// Lanes is how many rows are measured side by side where there is one round, if they do next to nothing.
	Lanes int
}

// Workloads are all there are, in the order in which they are run on a backend.
var Workloads = []*Workload{free, distinct64, distinct512, hot, handOver, processes, readFree, readTogether, readProcesses, writerComes, permitFree, permitsOfMany, held10k, held100k, waiters}

// Size says how long a run takes, and what its servers do with what they write.
type Size struct {
	Rounds    int
	Slice     time.Duration // of a round on one row
	Warm      time.Duration // for servers that need it
	Settle    time.Duration // before somebody who asked for a lock is known to wait
	HeldFor   time.Duration
	Held      [2]int // how many locks workload 6 holds
	Waiters   int
	DrainFor  time.Duration // then a drain is given up
	TTL       time.Duration // in place of the usual one, where processes of their own take the locks
	Points    int           // how many of each curve; 0 for all
	PeersFail bool          // an error of a peer fails the run, as one of dsync does

	Storage testenv.Storage // of the servers
}

// Sizes of a whole run, and of one that shows only that everything works.
var (
	Full = Size{
		Rounds: 4, Slice: 200 * time.Millisecond, Warm: 3 * time.Second, Settle: 5 * time.Millisecond,
		HeldFor: 20 * time.Second, Held: [2]int{10_000, 100_000}, Waiters: 5000, DrainFor: 4 * time.Second,
	}
	Short = Size{
		Rounds: 1, Slice: 20 * time.Millisecond, Settle: 5 * time.Millisecond,
		HeldFor: time.Second, Held: [2]int{200, 0}, Waiters: 64, DrainFor: 30 * time.Second, PeersFail: true,
	}
)

// hangGuard bounds everything. It is no expectation of how long something takes.
const hangGuard = 3 * time.Minute

// bed is a backend's servers with what is open on them.
type bed struct {
	tb      testing.TB
	size    Size
	backend *Backend
	servers *Servers
	guard   *guard
	path    string // of the guard

	open map[*Row][]Locker
	pair map[*Row]contenders
}

// lockers returns n clients of a row, which stay open for later rounds.
func (b *bed) lockers(r *Row, n int) ([]Locker, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	for len(b.open[r]) < n {
		l, err := r.Open(ctx, b.servers.Addrs)
		if err != nil {
			return nil, fmt.Errorf("open: %w", err)
		}
		b.open[r] = append(b.open[r], l)
	}
	return b.open[r][:n], nil
}

// forget gives up the clients of a row that has failed, so that the next round has others. Close of a peer's may hang with them.
func (b *bed) forget(r *Row) {
	b.pair[r].kill()
	delete(b.pair, r)
	if r.Kind != Peer {
		return
	}
	all := b.open[r]
	delete(b.open, r)
	go func() { // ends with the process at the latest
		for _, l := range all {
			_ = l.Close() // what failed has been told
		}
	}()
}

// close closes all clients, and the guard.
func (b *bed) close() error { return errors.Join(b.closeClients(), b.guard.close()) }

func (b *bed) closeClients() error {
	var errs []error
	for r, all := range b.open {
		for _, l := range all {
			if err := l.Close(); err != nil {
				errs = append(errs, fmt.Errorf("%s: close: %w", r.Name, err))
			}
		}
	}
	clear(b.open)
	return errors.Join(errs...)
}

// pairOnce takes a lock and gives it back.
func pairOnce(ctx context.Context, l Locker, name string) error {
	held, err := l.Lock(ctx, name)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := held.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// peerGuard bounds what a peer does in one round. Some wait for ever now and then, for a lock that is free.
const peerGuard = 10 * time.Second

// heldGuard bounds each step of a peer that holds many locks: one was seen to need half of it to give them back.
const heldGuard = time.Minute

// within returns a context for a round of a row.
func within(r *Row) (context.Context, context.CancelFunc) {
	if r.Kind == Peer {
		return context.WithTimeout(context.Background(), peerGuard)
	}
	return context.WithTimeout(context.Background(), hangGuard)
}
