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

// contender has as many clients as its task says, each of which wants the name once at a time; with none it has one, which many goroutines use.
func contender(w *worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	clients, err := w.openAll(ctx, max(1, w.N))
	if err != nil {
		return err
	}
	w.say(answer{})
	for {
		var o bout
		more, err := w.told(&o)
		if err != nil || !more {
			return errors.Join(err, closeAll(clients))
		}
		callers := clients
		if w.N == 0 {
			callers = slices.Repeat(clients, o.Callers)
		}
		all := contend(callers, o, w.guard)
		for _, next := range []func(){func() {}, all.begin} {
			next()
			w.say(answer{})
			if _, err := w.told(&struct{}{}); err != nil {
				return err
			}
		}
		w.say(answer{Contention: all.end()})
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

// fight has all contend for a name until during returns, and counts what they get from its call on. Before that is called called, if given: all have
// called by then, or are about to.
func (c contenders) fight(b *bed, o bout, called, during func() error) (*contention, error) {
	_, err := c.tell(b, o)
	if err == nil && called != nil {
		err = called()
	}
	if err == nil {
		_, err = c.tell(b, struct{}{})
	}
	if err == nil {
		err = during()
	}
	if err != nil {
		return nil, err
	}
	answers, err := c.tell(b, struct{}{})
	all := new(contention)
	for _, a := range answers {
		all.Counts = append(all.Counts, a.Contention.Counts...)
		all.MaxWait = max(all.MaxWait, a.Contention.MaxWait)
		if a.Contention.Error != "" {
			err = errors.New(a.Contention.Error)
		}
	}
	return all, err
}

// tell gives all an order, and returns what they answer.
func (c contenders) tell(b *bed, o any) (answers []answer, err error) {
	for _, p := range c {
		order(b.tb, p, o)
	}
	for _, p := range c {
		a, err := listen(p)
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// counting is for which part of a time requests are counted, before the time, as that takes time of the servers'.
const counting = 4

// watch measures contenders for a time. Before that it counts their requests, and stops the counter, which was there before them.
func (b *bed) watch(d time.Duration, requests counter) Sample {
	s := Sample{}
	before, granted := requests.read(), b.guard.grants.Load()
	_ = pause(context.Background(), d/counting) // ends by itself
	after := requests.read() - before           // may take its time, where the servers have much to do
	if granted = b.guard.grants.Load() - granted; granted > 0 {
		s["requests/hand-over"] = float64(after) / float64(granted)
	}
	requests.stop()
	s["hand-overs/s"] = b.rate(d)
	return s
}

// rate returns how often a lock is granted in a second, of a time.
func (b *bed) rate(d time.Duration) float64 {
	before, start := b.guard.grants.Load(), time.Now()
	_ = pause(context.Background(), d) // ends by itself
	return float64(b.guard.grants.Load()-before) / time.Since(start).Seconds()
}

// warm has contenders make their connections.
func (c contenders) warm(b *bed, o bout) error {
	o.Name += "-warm"
	_, err := c.fight(b, o, nil, func() error { return pause(context.Background(), b.size.Slice/4) })
	return err
}

func measureProcesses(b *bed, r *Row, round int) (s Sample, err error) {
	c, err := b.contenders(r)
	if err != nil {
		return nil, err
	}
	o := bout{Name: r.key("processes", round), Callers: contenderGoroutines}
	if round == 0 {
		if err := c.warm(b, o); err != nil {
			return nil, err
		}
	}
	requests := b.servers.Counter(b.tb)
	defer requests.stop()
	all, err := c.fight(b, o, nil, func() error {
		s = b.watch(2*b.size.Slice, requests)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s["Jain"], s["max wait ms"] = jain(all.Counts), millis(all.MaxWait)
	return s, nil
}
