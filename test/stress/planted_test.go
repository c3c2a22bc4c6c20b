package stress

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// TestPlanted plants known bugs in a driver and checks that the cells of
// TestStress catch each bug by the right rule.
func TestPlanted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		bug, fault string
		rules      []history.Rule
	}{
		{plantRenewal, "cut", []history.Rule{history.RuleWake, history.RuleStuck}},
		{plantLateLoss, "worker-freeze", []history.Rule{history.RuleOverlap, history.RuleLoss}},
		{plantNoBackstop, "worker-kill", []history.Rule{history.RuleWake, history.RuleStuck}},
		{plantByNumber, "worker-freeze", []history.Rule{history.RuleOverlap, history.RuleLoss}},
		{plantFlag, "worker-freeze", []history.Rule{history.RuleOverlap, history.RuleLoss}}, // RuleLoss if the term has ended at the first check
	} {
		t.Run(fmt.Sprint(test.bug, " under ", test.fault), func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(Faults, func(f *Fault) bool { return f.Name == test.fault })
			// The faults of a schedule may all miss the process that would
			// show the bug.
			const schedules = 4
			for range schedules {
				p := Plan{Seed: rand.Uint64(), Injections: max(5, *injections), Plant: test.bug, Out: *out}
				r := run(t, p, redisBed(t, ""), Faults[i])
				t.Logf("seed %d: %v", p.Seed, r.Verdict)
				for _, v := range r.Verdict.Violations {
					if slices.Contains(test.rules, v.Rule) {
						t.Logf("found: %v", v)
						if test.bug == plantByNumber && r.Most <= permitLimit {
							t.Error("the independent count has not found the bug")
						}
						return
					}
				}
				t.Logf("got %v", r.Err())
			}
			t.Errorf("want one of %d schedules to find the bug by one of the rules %v", schedules, test.rules)
		})
	}
}

// TestStaleWritesAreRefused tests the resource directly.
func TestStaleWritesAreRefused(t *testing.T) {
	h := history.New()
	r := startResource(t, h)
	a, b := dialResource(r.path), dialResource(r.path)
	defer a.close()
	defer b.close()
	write := func(c *resourceClient, name string, token uint64, who string) {
		c.access(name, token, driver.Write, who)
	}
	write(a, "n", 5, "a")
	write(b, "n", 7, "b")
	write(a, "n", 6, "a") // late
	write(b, "n", 7, "b")
	write(a, "other", 1, "a")
	a.access("n", 9, driver.Read, "a")
	b.access("n", 8, driver.Read, "b") // concurrent with the previous one
	a.access("n", 6, driver.Read, "a") // late
	if got := r.holder("n"); got != "b" {
		t.Errorf("the last writer: got %s, want b", got)
	}
	var accepted []string
	for _, e := range h.Events() {
		switch e.Kind {
		case history.KindWrite:
			accepted = append(accepted, fmt.Sprintf("%s%d%t", e.Name, e.Token, e.OK))
		case history.KindRead:
			accepted = append(accepted, fmt.Sprintf("read:%s%d%t", e.Name, e.Token, e.OK))
		}
	}
	if got, want := strings.Join(accepted, " "), "n5true n7true n6false n7true other1true read:n9true read:n8true read:n6false"; got != want {
		t.Errorf("recorded: got %s, want %s", got, want)
	}
}

// TestTally tests the count of permits directly.
func TestTally(t *testing.T) {
	a, b := &stay{n: 3, from: 10, to: 20}, &stay{n: 2, from: 20, to: 40}
	c, d := &stay{n: 1, from: 30, to: 35}, &stay{n: 2, from: 33, to: 33}
	for _, test := range []struct {
		stays   []*stay
		earlier time.Duration
		want    int
	}{
		{nil, 0, 0},
		{[]*stay{b, a}, 0, 3},
		{[]*stay{c, d, b, a}, 0, 3},
		{[]*stay{c, b, a}, 15, 2},
		{[]*stay{{n: 1, from: 0, to: 12}, a}, 0, 4},
		{[]*stay{{n: 1, from: 0, to: 12}, a}, 2, 3},
	} {
		if got := (&tally{stays: test.stays}).most(test.earlier); got != test.want {
			t.Errorf("%v, ended %d earlier: got %d, want %d", test.stays, test.earlier, got, test.want)
		}
	}
	r := startResource(t, history.New())
	x, y := dialResource(r.path), dialResource(r.path)
	defer x.close()
	defer y.close()
	x.holds(2, x.now()+time.Hour, "x")
	x.left()
	y.left()
	y.holds(3, y.now()+time.Hour, "y")
	x.holds(1, 1, "x") // already ended when it was reported
	if got := r.tally.most(0); got != 3 {
		t.Errorf("got %d permits at a time, want 3", got)
	}
	x.holds(1, x.now()+time.Hour, "x") // the same stay, renewed
	if got, n := r.tally.most(0), r.tally.count(); got != 4 || n != 3 {
		t.Errorf("got %d permits at a time and %d stays, want 4 and 3", got, n)
	}
}
