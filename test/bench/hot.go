package bench

import "slices"

const hotGoroutines = 32

var hot = &Workload{
	Number: 3, Name: "3", Title: "one hot lock, 32 goroutines in one process", File: "hot.svg", Plot: "hand-overs/s",
	Metrics: []Metric{{Name: "hand-overs/s", More: true}, {Name: "Jain", More: true}, {Name: "max wait ms"}},
	Measure: func(b *bed, r *Row, round int) (Sample, error) {
		clients, err := b.lockers(r, 1)
		if err != nil {
			return nil, err
		}
		before := b.guard.grants.Load()
		all := contend(slices.Repeat(clients, hotGoroutines), bout{Name: r.key("hot", round)}, b.guard)
		all.begin()
		rate := b.rate(2 * b.size.Slice)
		done := all.end()
		if done.err != nil {
			return nil, done.err
		}
		return Sample{
			"hand-overs/s": rate,
			"Jain":         jain(done.Counts),
			"max wait ms":  millis(done.MaxWait),
			operations:     float64(b.guard.grants.Load() - before),
		}, nil
	},
}
