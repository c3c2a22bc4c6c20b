package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	explained = 10 // violations with an excerpt
	around    = 4  // events of the lock before and after each event of a violation
)

// Err returns nil if the run is worth judging and nothing illegal happened. Otherwise its text lists what did.
func (v *Verdict) Err() error {
	var b strings.Builder
	if len(v.Invalid) > 0 {
		fmt.Fprintf(&b, "the run proves nothing: %s\n", strings.Join(v.Invalid[:min(len(v.Invalid), explained)], "; "))
	}
	for i, violation := range v.Violations {
		if i == explained {
			fmt.Fprintf(&b, "and %d more violations\n", len(v.Violations)-i)
			break
		}
		b.WriteString(violation.String())
	}
	if b.Len() == 0 {
		return nil
	}
	return errors.New(strings.TrimSuffix(b.String(), "\n"))
}

// String formats the violation for people, on several lines.
func (v Violation) String() string {
	s := fmt.Sprintf("%s of %q: %s\n", v.Rule, v.Name, v.Text)
	if v.Excerpt != "" {
		return s + v.Excerpt
	}
	for _, e := range v.Events {
		s += fmt.Sprintf("  > %v\n", e)
	}
	return s
}

// String is the summary of a run, on one line.
func (v *Verdict) String() string {
	return fmt.Sprintf("%d attempts: %d granted, %d refused, %d unknown; %d claims compared, %d released, %d lost (margin min %v, p50 %v); "+
		"wake-up p50 %v, p99 %v, max %v; %d faults; %d stale accesses, %d accepted; %d violations, %d reasons to discard the run",
		v.Attempts, v.Granted, v.Refused, v.Unknown, v.Claims, v.Released, v.Lost, v.LossMargin.Min, v.LossMargin.P50,
		v.Wake.P50, v.Wake.P99, v.Wake.Max, v.Faults, v.StaleWrites, v.StaleAccepted, len(v.Violations), len(v.Invalid))
}

// excerpt prints the events of a violation, each among some earlier and later events of the lock, and the faults of that time.
func (j *judge) excerpt(v *Violation) string {
	var story []*Event
	var marked []bool
	for i := range j.events {
		e := &j.events[i]
		if e.Name == v.Name && e.Kind != KindMeta && e.Kind != KindEnd || e.Kind == KindFaultOn || e.Kind == KindFaultOff {
			story = append(story, e)
			marked = append(marked, slices.ContainsFunc(v.Events, func(m Event) bool { return m.Proc == e.Proc && m.Seq == e.Seq }))
		}
	}
	var b strings.Builder
	skipped := 0
	for i, e := range story {
		if !slices.Contains(marked[max(i-around, 0):min(i+around+1, len(story))], true) {
			skipped++
			continue
		}
		if skipped > 0 {
			fmt.Fprintf(&b, "    ... %d more\n", skipped)
			skipped = 0
		}
		sign := ' '
		if marked[i] {
			sign = '>'
		}
		fmt.Fprintf(&b, "  %c %v\n", sign, e)
	}
	return b.String()
}
