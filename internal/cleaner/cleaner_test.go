package cleaner

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// remnant is a ghost that is gone at the last of some requests.
type remnant struct {
	Ghost
	requests int
	asked    []time.Duration // since it was added
}

// server settles remnants.
type server struct {
	mu      sync.Mutex
	takes   time.Duration // a request
	most    int           // calls at a time
	now     int
	batches []int
}

func (s *server) settle(ghosts []*remnant) (left []*remnant) {
	s.mu.Lock()
	s.batches = append(s.batches, len(ghosts))
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	for _, g := range ghosts {
		g.asked = append(g.asked, time.Since(g.Added))
	}
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	return slices.DeleteFunc(ghosts, func(g *remnant) bool { g.requests--; return g.requests <= 0 })
}

func bubble(t *testing.T, p Policy[*remnant], f func(t *testing.T, c *Cleaner[*remnant], life *lifecycle.Lifecycle)) {
	synctest.Test(t, func(t *testing.T) {
		life := lifecycle.New()
		f(t, New(life, p), life)
		life.End()
		life.Wait()
	})
}

func TestGhostIsAskedForEverMoreSeldom(t *testing.T) {
	s := &server{}
	bubble(t, Policy[*remnant]{Settle: s.settle, Batch: 1, Calls: 1}, func(t *testing.T, c *Cleaner[*remnant], _ *lifecycle.Lifecycle) {
		g := &remnant{requests: 12}
		c.Add(g)
		time.Sleep(time.Hour)
		synctest.Wait()
		want := []time.Duration{0}
		for pause := firstPause; len(want) < 12; pause = min(2*pause, lastPause) {
			want = append(want, want[len(want)-1]+pause)
		}
		if !slices.Equal(g.asked, want) {
			t.Errorf("requests after %v, want %v", g.asked, want)
		}
		if left := c.Left(); left != 0 {
			t.Errorf("got %d left, want none", left)
		}
		again := &remnant{requests: 1}
		c.Add(again)
		synctest.Wait()
		if len(again.asked) != 1 || c.running {
			t.Errorf("a ghost added after the goroutine ended: %d requests, running %t; want 1 request, and no running goroutine", len(again.asked), c.running)
		}
	})
}

func TestBatchesAndCallsAreBounded(t *testing.T) {
	s := &server{takes: time.Second}
	bubble(t, Policy[*remnant]{Settle: s.settle, Batch: 4, Calls: 3}, func(t *testing.T, c *Cleaner[*remnant], _ *lifecycle.Lifecycle) {
		c.mu.Lock() // so that they all arrive together
		for range 40 {
			g := &remnant{requests: 1}
			g.Added = time.Now()
			g.next, g.pause = g.Added, firstPause
			c.push(g)
		}
		c.mu.Unlock()
		c.Add(&remnant{requests: 1})
		begun := time.Now()
		if left := c.Finish(t.Context()); left != 0 {
			t.Errorf("got %d left, want none", left)
		}
		if took := time.Since(begun); took != 4*time.Second {
			t.Errorf("Finish took %v, want 4s: 11 calls, 3 at a time", took)
		}
		if most := slices.Max(s.batches); most != 4 || s.most != 3 {
			t.Errorf("got %d ghosts in a call and %d calls at a time, want 4 and 3", most, s.most)
		}
	})
}

func TestFinishDoesNotSitOutPauses(t *testing.T) {
	s := &server{}
	bubble(t, Policy[*remnant]{Settle: s.settle, Batch: 8, Calls: 1}, func(t *testing.T, c *Cleaner[*remnant], _ *lifecycle.Lifecycle) {
		g := &remnant{requests: 12}
		c.Add(g)
		time.Sleep(20 * time.Second) // within a long pause
		synctest.Wait()
		g.requests = 2
		begun := time.Now()
		if left := c.Finish(t.Context()); left != 0 || time.Since(begun) != firstPause {
			t.Errorf("got %d left after %v, want none after %v", left, time.Since(begun), firstPause)
		}
	})
}

func TestFinishWaitsForWhatIsExpected(t *testing.T) {
	s := &server{takes: time.Second}
	bubble(t, Policy[*remnant]{Settle: s.settle, Batch: 8, Calls: 1}, func(t *testing.T, c *Cleaner[*remnant], life *lifecycle.Lifecycle) {
		c.Expect(2)
		time.AfterFunc(time.Second, func() { c.Expect(-1) })
		time.AfterFunc(2*time.Second, func() {
			c.Add(&remnant{requests: 1})
			c.Expect(-1)
		})
		begun := time.Now()
		if left := c.Finish(t.Context()); left != 0 || time.Since(begun) != 3*time.Second {
			t.Errorf("got %d left after %v, want none after 3s", left, time.Since(begun))
		}
	})
}

func TestFinishEndsWithItsContext(t *testing.T) {
	s := &server{takes: 10 * time.Millisecond}
	bubble(t, Policy[*remnant]{Settle: s.settle, Batch: 8, Calls: 1}, func(t *testing.T, c *Cleaner[*remnant], _ *lifecycle.Lifecycle) {
		c.Expect(1)
		c.Add(&remnant{requests: 1000})
		c.Add(&remnant{requests: 1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if left := c.Finish(ctx); left != 2 {
			t.Errorf("got %d left, want 2: a ghost and an expected request", left)
		}
	})
}

func TestPolicyForgets(t *testing.T) {
	s := &server{takes: time.Hour}
	p := Policy[*remnant]{Settle: s.settle, Batch: 1, Calls: 1, Max: 3}
	p.Forget = func(ghosts []*remnant) int {
		least := slices.MinFunc(ghosts, func(a, b *remnant) int { return cmp.Compare(a.requests, b.requests) })
		if least.requests > 100 {
			return -1
		}
		return slices.Index(ghosts, least)
	}
	bubble(t, p, func(t *testing.T, c *Cleaner[*remnant], _ *lifecycle.Lifecycle) {
		c.Add(&remnant{requests: 1})
		synctest.Wait() // it is being settled
		for i, requests := range []int{7, 5, 8, 6, 9, 101, 102, 103, 104} {
			if full, want := c.Full(), i >= 2; full != want {
				t.Errorf("full with %d ghosts: got %t, want %t", i+1, full, want)
			}
			c.Add(&remnant{requests: requests})
		}
		var kept []int
		c.mu.Lock()
		for _, g := range c.ghosts {
			kept = append(kept, g.requests)
		}
		c.mu.Unlock()
		slices.Sort(kept)
		if want := []int{101, 102, 103, 104}; !slices.Equal(kept, want) {
			t.Errorf("kept %v, want %v: ghosts below 100 are given up first, the others never", kept, want)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestEndOfTheDriverEndsIt(t *testing.T) {
	s := &server{}
	bubble(t, Policy[*remnant]{Settle: s.settle, Batch: 1, Calls: 1}, func(t *testing.T, c *Cleaner[*remnant], life *lifecycle.Lifecycle) {
		c.Add(&remnant{requests: 1000})
		time.Sleep(time.Second)
		life.End()
		life.Wait()
		c.Add(&remnant{requests: 1}) // no goroutine is left to settle it
		if left := c.Left(); left != 2 {
			t.Errorf("got %d left, want 2", left)
		}
	})
}

// TestFinishWaitsForWhatComesMeanwhile: Finish also waits for a ghost that
// arrives at the moment when nothing is left.
func TestFinishWaitsForWhatComesMeanwhile(t *testing.T) {
	s := &server{takes: time.Second}
	bubble(t, Policy[*remnant]{Settle: s.settle, Batch: 1, Calls: 1}, func(t *testing.T, c *Cleaner[*remnant], _ *lifecycle.Lifecycle) {
		c.Expect(1)
		ended := make(chan int)
		go func() { ended <- c.Finish(t.Context()) }()
		synctest.Wait()
		c.mu.Lock() // Finish sees nothing of the instant between the two
		c.expected--
		c.signalNone()
		c.expected++
		c.mu.Unlock()
		synctest.Wait()
		c.Add(&remnant{requests: 1})
		c.Expect(-1)
		if left := <-ended; left != 0 {
			t.Errorf("Finish: got %d, want 0", left)
		}
	})
}
