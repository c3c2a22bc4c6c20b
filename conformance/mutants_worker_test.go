//go:build unix

package conformance

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// fileMutants are mutants that fail between processes.
var fileMutants = map[string]struct {
	check, breaks string
	mutate        func(*fileDriver)
	ttl           time.Duration // of leases whose end the check waits for
}{
	"own": {
		"processes/contend", "each process has separate locks",
		func(d *fileDriver) { d.suffix = fmt.Sprint(os.Getpid()) }, 0,
	},
	"early": {
		// The difference is large enough for the check to detect it even if the
		// machine stands still for seconds.
		"processes/killed", "a lease ends for other clients before it ends for its holder",
		func(d *fileDriver) { d.now = func() time.Time { return time.Now().Add(9500 * time.Millisecond) } }, 10 * time.Second,
	},
	"forever": {
		"processes/killed", "a lease ends only for its holder",
		func(d *fileDriver) { d.now = func() time.Time { return time.Time{} } }, 0,
	},
	"believes": {
		"processes/stopped", "a lease seems to end later than it ends",
		func(d *fileDriver) { d.late = time.Hour }, 0,
	},
}

func TestMutantsBetweenProcesses(t *testing.T) {
	t.Parallel()
	caught := map[string]bool{}
	for name, m := range fileMutants {
		caught[m.check] = true
		t.Run(fmt.Sprintf("%s, by %s", m.breaks, m.check), func(t *testing.T) {
			h := onFiles(t, "?broken="+name)
			h.TTL = m.ttl
			for _, c := range processChecks {
				if c.Name == m.check {
					h.hangs = 5 * time.Second // only the expected check may fail by being slow
				}
				r := c.result(t, h)
				if r.err == nil || r.stalled != "" && c.Name != m.check {
					continue
				}
				if c.Name != m.check {
					t.Fatalf("caught by %q, want %q; it reported: %v\n%s", c.Name, m.check, r.err, r.events)
				}
				t.Log(r.err)
				return
			}
			t.Fatalf("caught by no check, want %q", m.check)
		})
	}
	for _, c := range processChecks {
		if !caught[c.Name] {
			t.Errorf("no mutant is caught by %s, so nothing shows that it can fail", c.Name)
		}
	}
}
