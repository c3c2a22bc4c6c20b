package bench

import (
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// Flushes are the workloads of the curves by the time of a flush.
func Flushes() (all []*Workload) {
	for _, c := range []*Curve{freeFlushed, manyFlushed, handOverFlushed} {
		all = append(all, c.Points...)
	}
	return all
}

// FlushBackends have servers that write.
var FlushBackends = withoutPeers([]*Backend{redisBackend, etcdBackend, zkBackend, pgBackend})

// FullFlushes is the size of a whole run of Flushes.
var FullFlushes = Size{
	Rounds: 6, Slice: 400 * time.Millisecond, Warm: 3 * time.Second, Settle: 40 * time.Millisecond,
	Storage: testenv.Storage{Disk: true},
}

var (
	freeFlushed = flushed(free, "flush-free", "A free lock, by the time of a flush", aboutFreeFlushed, func(s Sample) Sample {
		return Sample{"p50 ms": s["p50 µs"] / 1000}
	})
	manyFlushed = flushed(distinct64, "flush-many", "Free locks, 64 goroutines on distinct names, by the time of a flush", aboutManyFlushed, func(s Sample) Sample {
		return Sample{"mean ms": 64 / s["ops/s"] * 1000}
	})
	handOverFlushed = flushed(handOver, "flush-handover", "A hand-over, by the time of a flush", aboutHandOverFlushed, func(s Sample) Sample {
		return Sample{"p50 ms": s["p50 µs"] / 1000}
	})
)

// flushed is a curve of a workload on servers with a disk whose flushes take longer and longer. The first metric of in is plotted.
func flushed(w *Workload, name, title, about string, in func(Sample) Sample) *Curve {
	plotted := "p50 ms"
	if w == distinct64 {
		plotted = "mean ms"
	}
	c := &Curve{Name: name, Title: title, By: "ms", About: about, Linear: true}
	return c.add(func(ms float64) *Workload {
		return &Workload{
			Number: w.Number, Plot: plotted, Metrics: []Metric{{Name: plotted}},
			Measure: func(b *bed, r *Row, round int) (Sample, error) {
				slow := b.size.Storage.Slow
				slow.Set(time.Duration(ms * float64(time.Millisecond)))
				defer slow.Set(0)
				s, err := w.Measure(b, r, round)
				if err != nil {
					return nil, err
				}
				return in(s), nil
			},
		}
	}, 0, 1, 2, 5, 10)
}
