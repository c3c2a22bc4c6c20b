package history

import (
	"cmp"
	"slices"
	"time"
)

// assumptions checks that the run proves something: that enough happened, before the faults and after each of them.
func (j *judge) assumptions() {
	type client struct{ proc, name string }
	clients := map[client]bool{}
	var grants []time.Duration
	for i := range j.events {
		if e := &j.events[i]; e.Kind == KindGrant {
			grants = append(grants, e.Time)
			clients[client{e.Proc, e.Client}] = true
		}
	}
	if len(clients) < j.b.MinClients {
		j.invalid("only %d clients were granted anything, want %d", len(clients), j.b.MinClients)
	}
	if unknown := j.unknown(); float64(unknown) > j.b.MaxUnknown*float64(j.v.Attempts) {
		j.invalid("the outcome of %d of %d attempts is unknown", unknown, j.v.Attempts)
	}
	for label, p := range j.procs {
		if !p.ended && p.killed == never {
			j.invalid("process %q was not killed by a recorded fault, and yet its history was not closed", label)
		}
	}
	j.progress(grants)
	slices.Sort(j.v.Invalid)
}

// progress checks that there were grants before the first fault, and in every window after one.
func (j *judge) progress(grants []time.Duration) {
	between := func(from, to time.Duration) int {
		i, _ := slices.BinarySearch(grants, from)
		k, _ := slices.BinarySearch(grants, to)
		return k - i
	}
	firstFault := never
	if len(j.quiet) > 0 && !j.quiet[0].recovering {
		firstFault = j.quiet[0].to
	}
	if n := between(-never, firstFault); n < j.b.MinGrants {
		j.invalid("%d grants before the first fault, want %d", n, j.b.MinGrants)
	}
	if n := len(j.quiet); n == 0 || j.quiet[n-1].to != never {
		j.invalid("the last fault did not end")
	}
	for _, w := range j.quiet {
		if w.recovering && (w.to == never || w.to-w.from >= j.b.Recover) && between(w.from, w.to) == 0 {
			j.invalid("no grant after the fault that ended at %.6f", w.from.Seconds())
		}
	}
}

// unknown counts the attempts of which it is not known whether they were granted.
func (j *judge) unknown() int {
	n := j.v.Unknown
	for _, l := range j.locks {
		for _, a := range l.attempts {
			if a.returned == nil {
				n++
			}
		}
	}
	return n
}

// writes compares each access to a protected resource with the highest token that it accepted before (RuleStale).
func (j *judge) writes() {
	highest := map[string]*Event{}
	for i := range j.events {
		e := &j.events[i]
		if e.Kind != KindWrite {
			continue
		}
		h := highest[e.Name]
		switch {
		case h != nil && h.Token > e.Token:
			j.v.StaleWrites++
			if e.OK {
				j.v.StaleAccepted++
			}
			if e.OK && j.b.StoreFences {
				j.violation(RuleStale, e.Name, "an access was accepted although its token is stale", h, e)
			}
		case e.OK:
			highest[e.Name] = e
		}
	}
	slices.SortStableFunc(j.v.Violations, func(a, b Violation) int { return cmp.Compare(a.Rule, b.Rule) })
}
