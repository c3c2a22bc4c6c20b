package bench

import (
	"fmt"
	"time"
)

// Crowds is the curve of one name that many clients want, each with connections of its own.
var Crowds = (&Curve{
	Name: "crowds", Title: "One name that many clients want", By: "clients", Apart: true, About: fmt.Sprintf(aboutCrowds, crowdProcesses),
}).add(func(clients float64) *Workload {
	return &Workload{
		Number: 14, Plot: "hand-overs/s", Metrics: processes.Metrics,
		Measure: func(b *bed, r *Row, _ int) (Sample, error) { return measureCrowd(b, r, int(clients)) },
	}
}, 2, 10, 50, 200, 1000)

// Sizes of a whole run of Crowds, and of one that shows only that everything works. The slice is for two clients.
var (
	FullCrowds  = Size{Rounds: 1, Slice: time.Second, Warm: 3 * time.Second}
	ShortCrowds = Size{Rounds: 1, Slice: 500 * time.Millisecond, Points: 2, PeersFail: true}
)

const (
	crowdProcesses = 4
	crowdHold      = time.Millisecond
	crowdTurn      = 5 * time.Millisecond // by which each client makes a round longer, so that a large crowd has its turns as well
)

// measureCrowd leaves no client behind: those of a thousand would keep their sessions alive beside the next row.
func measureCrowd(b *bed, r *Row, clients int) (Sample, error) {
	c, err := b.start(r, shares(clients, min(clients, crowdProcesses))...)
	if err != nil {
		return nil, err
	}
	defer c.kill()
	d := b.size.Slice + time.Duration(clients)*crowdTurn
	if _, err := c.fight(b, bout{Name: r.key("crowd", clients, "warm"), For: d / 8, Hold: crowdHold}); err != nil { // connections
		return nil, err
	}
	s, err := c.measure(b, bout{Name: r.key("crowd", clients), For: d, Hold: crowdHold}, true)
	if err != nil {
		return nil, err
	}
	for _, p := range c {
		if err := p.Wait(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// shares divides n among parts, as evenly as may be.
func shares(n, parts int) []int {
	all := make([]int, parts)
	for i := range all {
		all[i] = (n + i) / parts
	}
	return all
}
