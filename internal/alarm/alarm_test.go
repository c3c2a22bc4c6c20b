package alarm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/clock"
)

// TestAlarmsAreNeverLate compares alarms with a list of the set ones, while
// time passes at random.
func TestAlarmsAreNeverLate(t *testing.T) {
	const grain = clock.Moment(100)
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		q := Queue[int]{Grain: grain}
		set := make(map[*Alarm[int]]clock.Moment) // how long before its time each alarm was set
		all := make([]Alarm[int], 20)
		now := clock.Moment(r.IntN(1000))
		for range 500 {
			switch a := &all[r.IntN(len(all))]; r.IntN(4) {
			case 0:
				at := now + clock.Moment(r.IntN(1000))
				q.Set(a, now, at)
				set[a] = at - now
			case 1:
				a.Stop()
				delete(set, a)
			default:
				now += clock.Moment(r.IntN(60))
				for at, ok := q.Next(); ok && at <= now; at, ok = q.Next() {
					for _, a := range q.Take() {
						before, there := set[a]
						if !there || a.at-at >= grain || a.at != at && before <= grain {
							t.Fatalf("seed %d: an alarm for %d came at %d, set %d before: %v", seed, a.at, at, before, there)
						}
						delete(set, a)
					}
				}
				for a := range set {
					if a.at <= now {
						t.Fatalf("seed %d: an alarm for %d has not come at %d", seed, a.at, now)
					}
				}
			}
		}
		for a := range set {
			a.Stop()
		}
		for _, s := range slices.Clone(q.heap) {
			if !s.all.Empty() || s.at%grain != 0 {
				t.Fatalf("seed %d: the slot at %d remains, empty: %v", seed, s.at, s.all.Empty())
			}
		}
	}
}

// TestHoldsOfABatchShareSlots counts slots. The cost of each hold in a large
// batch is an entry in two lists.
func TestHoldsOfABatchShareSlots(t *testing.T) {
	const ttl = 30 * time.Second
	renewals, ends := Queue[int]{Grain: ttl / 64}, Queue[int]{Grain: ttl / 64}
	all := make([]Alarm[int], 100_000)
	for i := range all {
		renewals.Set(&all[i], 0, ttl/3+clock.Moment(i)*50*time.Microsecond) // taken within 5 s
	}
	if n := len(renewals.heap); n > 12 {
		t.Errorf("%d slots for locks that are taken within 5 s, want one for each %v", n, renewals.Grain)
	}
	for i := range all {
		ends.Set(&all[i], ttl/3, ttl+clock.Moment(i)*50*time.Microsecond)
	}
	if n := len(ends.heap); n > 12 {
		t.Errorf("%d slots for the ends of a batch, want one for each %v", n, ends.Grain)
	}
}

func BenchmarkAlarmsOfABatch(b *testing.B) {
	const n, ttl = 100_000, 30 * time.Second
	renewals, ends := Queue[int]{Grain: ttl / 64}, Queue[int]{Grain: ttl / 64}
	all := make([]Alarm[int], n)
	order := rand.Perm(n)
	now := clock.Moment(0)
	for i := range all {
		renewals.Set(&all[i], now, ttl/3+clock.Moment(i)*10*time.Microsecond)
	}
	for b.Loop() {
		now += ttl / 3
		for at, ok := renewals.Next(); ok && at <= now+2*time.Second; at, ok = renewals.Next() {
			renewals.Take()
		}
		for _, i := range order {
			ends.Set(&all[i], now, now+ttl*2/3)
		}
		for _, i := range order {
			renewals.Set(&all[i], now, now+ttl/3)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/hold")
}
