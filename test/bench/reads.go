package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
)

// The workloads of names that many read at a time. Only rows take part that name them, on backends that have readers.

var (
	readFree = &Workload{
		Number: 8, Named: true, Name: "8", Title: "a free name, read by one goroutine", File: "read.svg", Plot: "p50 µs",
		Metrics: free.Metrics, Measure: measureFree,
	}
	readTogether = &Workload{
		Number: 9, Named: true, Name: "9", Title: "one name, read by 64 goroutines in one process", File: "read64.svg", Plot: "ops/s",
		Metrics: distinct64.Metrics,
		Measure: func(b *bed, r *Row, round int) (Sample, error) {
			name := r.key("read", round)
			names := make([]string, 64)
			for i := range names {
				names[i] = name
			}
			return measureNames(b, r, names)
		},
	}
	readProcesses = &Workload{
		Number: 10, Named: true, Name: "10", Title: "one name for 1 ms at a time, 2 processes with 32 goroutines each: Read beside Lock", File: "readheld.svg",
		Plot: "holds/s", Metrics: []Metric{{Name: "holds/s", More: true}, {Name: "max wait ms"}},
		Measure: measureVisits,
	}
)

var writerComes = &Workload{
	Number: 11, Named: true, Name: "11", Title: "one who writes, beside readers of 3 clients who always read", File: "writer.svg", Plot: "max wait ms",
	OursAlone: true,
	Metrics:   []Metric{{Name: "p50 ms"}, {Name: "max wait ms"}},
	Measure:   measureWriter,
}

const (
	visitors  = 32 // in each of two processes
	visitTime = time.Millisecond
)

// readRows makes the rows of a backend, with the floors of workloads 8 and 9. The floor of workload 10 is the lock of dsync.
func readRows(scheme, rest string, floors ...*Row) []*Row {
	locks := ours("dsync, Lock", scheme, rest, dsync.Options{}, 10)
	locks.Kind = Floor
	return append(floors, locks, reads("dsync, Read", scheme, rest, 8, 9, 10, 11))
}

// reads makes a row of dsync whose locks are for reading.
func reads(name, scheme, rest string, in ...int) *Row {
	return oursWith(dsync.Read(), name, scheme, rest, in...)
}

func measureVisits(b *bed, r *Row, round int) (Sample, error) {
	c, err := b.contenders(r)
	if err != nil {
		return nil, err
	}
	o := bout{Name: r.key("visits", round), Hold: visitTime, Together: true, Callers: visitors}
	if round == 0 {
		if err := c.warm(b, o); err != nil {
			return nil, err
		}
	}
	var rate float64
	all, err := c.fight(b, o, nil, func() error {
		rate = b.rate(2 * b.size.Slice)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return Sample{"holds/s": rate, "max wait ms": millis(all.MaxWait)}, nil
}

const (
	readingClients = 3
	perClient      = 4
	longestRead    = 20 * time.Millisecond
)

// measureWriter has one client write a name now and then that goroutines of others read without a pause, each for a time of its own, so that
// somebody always reads.
func measureWriter(b *bed, r *Row, round int) (Sample, error) {
	clients, err := b.lockers(r, readingClients+1)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(r)
	defer cancel()
	name := r.key("writer", round)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, readingClients*perClient)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { // ends with reading
			for errs[i] == nil && reading.Err() == nil {
				held, err := clients[i%readingClients].Lock(ctx, name)
				if errs[i] = err; err == nil {
					_ = pause(reading, longestRead/4+rand.N(longestRead*3/4)) // the end of a pause is that of the loop
					errs[i] = held.Release(ctx)
				}
			}
		})
	}
	writer := dsync.With(clients[readingClients].(optionLocker).client, dsync.Write())
	var took []time.Duration
	for end := time.Now().Add(2 * b.size.Slice); err == nil && (len(took) == 0 || time.Now().Before(end)); {
		if err = pause(ctx, longestRead); err != nil {
			break
		}
		start := time.Now()
		var lease *dsync.Lease
		if lease, err = writer.Lock(ctx, name); err == nil {
			took = append(took, time.Since(start))
			err = lease.Unlock(ctx)
		}
	}
	stop()
	wg.Wait()
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return Sample{"p50 ms": millis(percentile(took, 0.5)), "max wait ms": millis(percentile(took, 1))}, nil
}
