package stress

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// Result is the outcome of a cell.
type Result struct {
	Backend, Fault string
	Unsafe         string // why exclusion is not promised
	Seed           uint64

	Injected       int
	Faulty, Lasted time.Duration
	Operations     int // calls to Lock, TryLock and Unlock that returned
	Reads, Writes  int // grants of the name that is read and written
	Terms          int // of leaders
	Permits        int // grants of permits
	Most           int // largest number of permits held at a time, as reported by their holders
	Verdict        *history.Verdict
	Bound          time.Duration // upper bound of Regained
	Slices         int           // slices for which porcupine found an order
	Inconclusive   int           // slices for which porcupine ran out of time
	// the longest time from the end of a fault until a name was granted again
	Regained time.Duration

	Allowed []history.Violation // violations that the backend does not promise to prevent
	Failed  []string            // what must not have happened
	Left    []string            // left on the servers after all clients had ended
	Invalid []string            // reasons why the cell proves nothing
}

// judge computes the verdict.
func (c *cell) judge() {
	events, err := history.Read(c.files...)
	if err != nil {
		c.t.Fatal(err)
	}
	r := &c.result
	r.Verdict = history.Judge(events, c.bounds())
	r.Invalid = append(r.Invalid, r.Verdict.Invalid...)
	for _, v := range r.Verdict.Violations {
		if r.Unsafe != "" && (isExclusion(v.Rule) || v.Rule == history.RuleResult && v.Name == c.permits) {
			// the limit is lost, too
			r.Allowed = append(r.Allowed, v)
		} else {
			r.Failed = append(r.Failed, v.String())
		}
	}
	for _, e := range events {
		switch {
		case e.Kind == history.KindGrant && e.Name == c.election:
			r.Terms++
		case e.Kind == history.KindGrant && e.Mode == driver.Read:
			r.Reads++
		case e.Kind == history.KindGrant && e.Mode == driver.Write:
			r.Writes++
		case e.Kind == history.KindGrant && e.Mode == driver.Permit:
			r.Permits++
		}
		switch e.Kind {
		case history.KindGrant, history.KindRefuse, history.KindFail, history.KindReleased, history.KindNotReleased:
			r.Operations++
		}
	}
	if c.shared != "" && (r.Reads == 0 || r.Writes == 0) {
		c.invalid("%q was read %d times and written %d times", c.shared, r.Reads, r.Writes)
	}
	if c.election != "" && r.Terms < c.Injections {
		c.invalid("%q had %d terms during %d faults", c.election, r.Terms, c.Injections)
	}
	c.count()
	c.regained(events)
	c.crossCheck(events)
	c.draw(events)
	if r.Verdict.Faults < c.Injections || r.Injected < c.Injections {
		c.invalid("%d faults are recorded, want %d", r.Verdict.Faults, c.Injections)
	}
}

// count checks the number of permits held at a time, using the independent
// count. It leaves out a holder that may not yet know that its hold was
// removed.
func (c *cell) count() {
	if c.permits == "" {
		return
	}
	r := &c.result
	if r.Most = c.resource.tally.most(0); r.Most < permitLimit {
		c.invalid("at most %d of %d permits were held at a time", r.Most, permitLimit)
	}
	if n := c.resource.tally.most(c.bounds().Detect); n > permitLimit && r.Unsafe == "" {
		r.Failed = append(r.Failed, fmt.Sprintf("%s: %d of %d permits of %q were held, according to the independent count", history.RuleOverlap, n, permitLimit, c.permits))
	}
}

func isExclusion(r history.Rule) bool {
	return r == history.RuleOverlap || r == history.RuleLoss || r == history.RuleTokens
}

// bounds returns the promises of the backend under the fault, except for the
// order of waiters. A waiter whose session has ended starts again at the end of
// the queue, and the records do not distinguish that from being overtaken. The
// storms of the suite check the order.
func (c *cell) bounds() history.Bounds {
	i := c.bed.info
	b := history.Bounds{
		Fenced:      i.Fencing != driver.None,
		StoreFences: i.Fencing != driver.None,
		Detect:      c.bed.early,
		Linger:      TTL + i.Late,
		Wake:        c.bed.recover,
		Stuck:       patience,
		Recover:     c.bed.recover,
		MinGrants:   20,
		MaxUnknown:  0.5, // while a server is down, impatient callers get no other result
	}
	if c.fault.removes || c.bed.tied && c.fault.cuts || c.bed.ends == c.fault.Name {
		b.Detect = i.Detect + time.Second // for a busy machine
		if i.Detect == 0 {
			b.Detect = TTL/2 + time.Second
		}
	}
	if c.fault.sleeps {
		// a process that wakes up frees its lost locks, and a separate
		// goroutine records the loss
		b.Detect = max(b.Detect, TTL/8)
	}
	if c.result.Unsafe != "" {
		b.Detect = 0 // without a promise, every overlap counts
	}
	return b
}

// regained measures the time from the end of a fault until each name was
// granted again.
func (c *cell) regained(events []history.Event) {
	waiting := map[string]time.Duration{} // time since then, from the end of the last fault
	for _, e := range events {
		switch e.Kind {
		case history.KindFaultOff:
			for _, name := range c.names {
				if _, already := waiting[name]; !already {
					waiting[name] = e.Time
				}
			}
		case history.KindFaultOn:
			clear(waiting)
		case history.KindGrant:
			since, ok := waiting[e.Name]
			if !ok {
				continue
			}
			delete(waiting, e.Name)
			c.result.Regained = max(c.result.Regained, e.Time-since)
			if e.Time-since > c.bed.recover {
				c.result.Failed = append(c.result.Failed, fmt.Sprintf("%s: %q was granted %v after the end of a fault, want at most %v",
					history.RuleStuck, e.Name, e.Time-since, c.bed.recover))
			}
		}
	}
}

// Err returns nil if the cell proves something and no promise was broken.
func (r *Result) Err() error {
	var all []string
	all = append(all, r.Failed...)
	all = append(all, join("V7 left behind:", r.Left)...)
	all = append(all, join("the cell proves nothing:", r.Invalid)...)
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%s under %s, seed %d:\n%s", r.Backend, r.Fault, r.Seed, strings.Join(all, "\n"))
}
