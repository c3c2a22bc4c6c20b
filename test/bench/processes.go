package bench

import (
	"context"
	"errors"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

const contenderGoroutines = 16 // in each of two processes

var processes = &Workload{
	Number: 5, Name: "5", Title: "one hot lock, 2 processes with 16 goroutines each", File: "processes.svg", Plot: "hand-overs/s",
	Metrics: []Metric{{Name: "hand-overs/s", More: true}, {Name: "requests/hand-over"}, {Name: "Jain", More: true}, {Name: "max wait ms"}},
	Measure: measureProcesses,
}

// contenders are two processes that use one row.
type contenders struct{ both [2]*testenv.Process }

// bout is what they are told to do.
type bout struct {
	Name string
	For  time.Duration
	Hold time.Duration // if not 0, how long to keep the name each time, which several may at once: see visit
}

func contender(w *worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	l, err := w.open(ctx)
	if err != nil {
		return err
	}
	w.say(answer{})
	for {
		var b bout
		more, err := w.told(&b)
		if err != nil || !more {
			return errors.Join(err, l.Close())
		}
		if b.Hold > 0 {
			w.say(answer{Contention: visit(l, b.Name, b.For, b.Hold)})
		} else {
			w.say(answer{Contention: contend(l, contenderGoroutines, b.Name, b.For, w.guard)})
		}
	}
}

func (b *bed) contenders(r *Row) (*contenders, error) {
	if c := b.pair[r]; c != nil {
		return c, nil
	}
	c := new(contenders)
	for i := range c.both {
		c.both[i] = spawn(b.tb, "contender", task{Backend: b.backend.Name, Row: r.Name, Addrs: b.servers.Addrs, Guard: b.path})
	}
	for _, p := range c.both {
		if _, err := listen(p); err != nil {
			return nil, err
		}
	}
	b.pair[r] = c
	return c, nil
}

// fight has both contend for a name.
func (c *contenders) fight(b *bed, o bout) (*contention, error) {
	for _, p := range c.both {
		order(b.tb, p, o)
	}
	all := &contention{Took: o.For}
	var failed error
	for _, p := range c.both {
		a, err := listen(p)
		if err == nil && a.Contention.Error != "" {
			err = errors.New(a.Contention.Error)
		}
		if err != nil {
			failed = err
			continue
		}
		all.Counts = append(all.Counts, a.Contention.Counts...)
		all.Grants += a.Contention.Grants
		all.MaxWait = max(all.MaxWait, a.Contention.MaxWait)
	}
	return all, failed
}

func measureProcesses(b *bed, r *Row, round int) (Sample, error) {
	c, err := b.contenders(r)
	if err != nil {
		return nil, err
	}
	if round == 0 { // connections
		if _, err := c.fight(b, bout{Name: r.key("warm"), For: b.size.Slice / 4}); err != nil {
			return nil, err
		}
	}
	all, err := c.fight(b, bout{Name: r.key("processes", round), For: 2 * b.size.Slice})
	if err != nil {
		return nil, err
	}
	s := Sample{
		"hand-overs/s": float64(sum(all.Counts)) / all.Took.Seconds(),
		"Jain":         jain(all.Counts),
		"max wait ms":  millis(all.MaxWait),
	}
	if round > 0 {
		return s, nil
	}
	// Counting takes time of the server's, so this has a turn of its own.
	var counted *contention
	requests := b.servers.Count(b.tb, func() { counted, err = c.fight(b, bout{Name: r.key("counted"), For: b.size.Slice}) })
	if err == nil && counted.Grants > 0 {
		s["requests/hand-over"] = float64(requests) / float64(counted.Grants)
	}
	return s, err
}
