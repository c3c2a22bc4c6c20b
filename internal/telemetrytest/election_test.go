package telemetrytest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/telemetrytest"
)

// TestTelemetryOfElections uses a leader and a candidate and ends terms in all
// possible ways.
func TestTelemetryOfElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		o := &dsync.Options{Class: func(name string) string { return name }}
		ob := observe(o)
		leader, candidate := newClient(t, s.NewDriver(), o), newClient(t, s.NewDriver(), o)
		wants := func(when string, candidates, leaders int, ends ...string) {
			t.Helper()
			synctest.Wait()
			lines := []string{
				fmt.Sprintf("dsync.election.candidate.count {dsync.driver=memory dsync.lock.class=planner} %d\n", candidates),
				fmt.Sprintf("dsync.election.leader.count {dsync.driver=memory dsync.lock.class=planner} %d\n", leaders),
			}
			for _, end := range ends {
				lines = append(lines, "dsync.election.terms {dsync.driver=memory dsync.election.end="+end+" dsync.lock.class=planner} 1\n")
			}
			got := ob.points(t)
			for _, line := range lines {
				if !strings.Contains(got, line) {
					t.Errorf("%s: points:\n%swant %s among them", when, got, line)
				}
			}
			if got, want := strings.Count(got, "dsync.election.terms"), len(ends); got != want {
				t.Errorf("%s: terms ended in %d ways, want %d", when, got, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		lead := func(ctx context.Context, _ *dsync.Lease) error {
			<-ctx.Done()
			return ctx.Err()
		}
		go func() { ended <- dsync.Elect(ctx, dsync.With(leader.NewOwner()), "planner", lead) }()
		wants("one leads", 1, 1)
		if zeros := ob.zeros(t); !zeros["dsync.election.terms dsync.election.end=lost of planner"] {
			t.Errorf("no point of terms is 0 from the start, in %v", zeros)
		}
		other, leave := context.WithCancel(t.Context())
		go func() { ended <- dsync.Elect(other, candidate, "planner", lead) }()
		wants("one client leads, another waits", 2, 1)
		leave()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the candidate: %v", err)
		}
		wants("one client no longer waits", 1, 1)
		if err := leader.ForceUnlock(t.Context(), "planner"); err != nil {
			t.Fatal(err)
		}
		wants("a term was lost", 1, 0, "lost")
		time.Sleep(time.Second) // the maximum pause after a loss
		cancel()
		<-ended
		wants("one resigned", 0, 0, "lost", "resigned")
		func() { // the leader closes its client, and panics
			defer func() { _ = recover() }()
			_ = dsync.Elect(t.Context(), leader, "planner", func(ctx context.Context, _ *dsync.Lease) error {
				leader.Close(ctx)
				panic("out of order")
			})
		}()
		wants("one client was closed", 0, 0, "lost", "resigned", "closed")
		spans := telemetrytest.RenderSpans(ob.spans.GetSpans())
		for part, n := range map[string]int{
			"\n  dsync.election.term {":      3,
			"dsync.election.campaign {":      4,
			"dsync.acquire.outcome=canceled": 3, // the campaign, its acquire and its wait
			"dsync.election.end=lost":        1,
			"dsync.election.end=resigned":    1,
			"dsync.election.end=closed":      1,
			"\n  dsync.acquire {":            4,
		} {
			if got := strings.Count(spans, part); got != n {
				t.Errorf("%q appears %d times, want %d, in the spans\n%s", part, got, n, spans)
			}
		}
	})
}
