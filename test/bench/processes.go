package bench

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

const contenderGoroutines = 16 // in each of two processes

var processes = &Workload{
	Number: 5, Name: "5", Title: "one hot lock, 2 processes with 16 goroutines each", File: "processes.svg", Plot: "hand-overs/s",
	Metrics: []Metric{{Name: "hand-overs/s", More: true}, {Name: "requests/hand-over"}, {Name: "Jain", More: true}, {Name: "max wait ms"}},
	Measure: measureProcesses,
}

// contenders are processes that use one row.
type contenders []*testenv.Process

// bout is what they are told to do.
type bout struct {
	Name     string
	For      time.Duration
	Hold     time.Duration // how long to keep the name each time
	Together bool          // several may have the name at once: see visit
}

// contender has as many clients as its task says, each of which wants the name once at a time; with none it has one, which many goroutines use.
func contender(w *worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	clients, err := w.openAll(ctx, max(1, w.N))
	if err != nil {
		return err
	}
	callers := clients
	if w.N == 0 {
		callers = slices.Repeat(clients, contenderGoroutines)
	}
	w.say(answer{})
	for {
		var b bout
		more, err := w.told(&b)
		if err != nil || !more {
			return errors.Join(err, closeAll(clients))
		}
		if b.Together {
			w.say(answer{Contention: visit(clients[0], b.Name, b.For, b.Hold)})
		} else {
			w.say(answer{Contention: contend(callers, b.Name, b.For, b.Hold, w.guard)})
		}
	}
}

// start starts a process for each number of clients.
func (b *bed) start(r *Row, clients ...int) (contenders, error) {
	var c contenders
	for _, n := range clients {
		c = append(c, spawn(b.tb, "contender", task{Backend: b.backend.Name, Row: r.Name, Addrs: b.servers.Addrs, Guard: b.path, N: n, Planted: r.planted}))
	}
	for _, p := range c {
		if _, err := listen(p); err != nil {
			c.kill()
			return nil, err
		}
	}
	return c, nil
}

// contenders returns two processes with a client each, which stay for later rounds.
func (b *bed) contenders(r *Row) (contenders, error) {
	if c := b.pair[r]; c != nil {
		return c, nil
	}
	c, err := b.start(r, 0, 0)
	if err == nil {
		b.pair[r] = c
	}
	return c, err
}

func (c contenders) kill() {
	for _, p := range c {
		p.Kill()
	}
}

// fight has all contend for a name.
func (c contenders) fight(b *bed, o bout) (*contention, error) {
	for _, p := range c {
		order(b.tb, p, o)
	}
	all := &contention{Took: o.For}
	var failed error
	for _, p := range c {
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

// measure has all contend for a name, and counts what that takes in a shorter bout, as counting takes time of the server's.
func (c contenders) measure(b *bed, o bout, count bool) (Sample, error) {
	all, err := c.fight(b, o)
	if err != nil {
		return nil, err
	}
	s := Sample{
		"hand-overs/s": float64(sum(all.Counts)) / all.Took.Seconds(),
		"Jain":         jain(all.Counts),
		"max wait ms":  millis(all.MaxWait),
	}
	if !count {
		return s, nil
	}
	o.Name, o.For = o.Name+"-counted", o.For/2
	var counted *contention
	requests := b.servers.Count(b.tb, func() { counted, err = c.fight(b, o) })
	if err == nil && counted.Grants > 0 {
		s["requests/hand-over"] = float64(requests) / float64(counted.Grants)
	}
	return s, err
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
	return c.measure(b, bout{Name: r.key("processes", round), For: 2 * b.size.Slice}, round == 0)
}
