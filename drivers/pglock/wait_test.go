package pglock

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// TestWhoLeavesTakesNoTurnAlong has attempts enter a queue, send requests
// without success, and give up, in random order. The queue is busy only for an
// attempt that sends a request or is about to.
func TestWhoLeavesTakesNoTurnAlong(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		d := &Driver{queues: make(map[AdvisoryKey]*localQueue), life: lifecycle.New()}
		g := d.enterQueue(AdvisoryKey{})
		var waiting, leaving []*attempt
		var asking *attempt
		for range 60 {
			switch random.IntN(5) {
			case 0:
				waiting = append(waiting, d.join(g, new(driver.Request)))
			case 1: // a waiting attempt gets the verdict
				if i := slices.IndexFunc(waiting, func(one *attempt) bool { return one.verdict == tryNow }); i >= 0 {
					asking = waiting[i]
					waiting = slices.Delete(waiting, i, i+1)
				}
			case 2: // the context of a waiting attempt ends
				if len(waiting) == 0 {
					continue
				}
				i := random.IntN(len(waiting))
				if one := waiting[i]; one.ready != nil && d.await(canceled, g, one) != nil {
					leaving = append(leaving, one)
					waiting = slices.Delete(waiting, i, i+1)
				}
			case 3: // the server has refused
				if asking != nil {
					d.endRequest(g)
					leaving, asking = append(leaving, asking), nil
				}
			case 4:
				if len(leaving) > 0 {
					d.dequeue(g, leaving[0])
					leaving = leaving[1:]
				}
			}
			busy := asking != nil || slices.ContainsFunc(waiting, func(one *attempt) bool { return one.verdict == tryNow })
			if g.busy != busy || !busy && len(waiting) > 0 && len(leaving) == 0 {
				t.Fatalf("seed %d: got a busy queue: %t, want %t; %d attempts wait", seed, g.busy, busy, len(waiting))
			}
		}
	}
}
