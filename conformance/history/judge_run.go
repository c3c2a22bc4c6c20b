package history

import "slices"

// assumptions checks that the run proves something: that enough happened, before the faults and after each of them.
func (j *judge) assumptions() {
	type client struct{ proc, name string }
	clients, grants := map[client]bool{}, map[window]int{}
	for _, l := range j.locks {
		for _, a := range slices.Concat(l.holds, l.permits) {
			clients[client{a.owner.proc, a.owner.client}] = true
			if w, ok := j.quietAround(a.from.t, a.from.t); ok {
				grants[w]++
			}
		}
	}
	if len(clients) < j.b.MinClients {
		j.invalid("only %d clients were granted anything, want %d", len(clients), j.b.MinClients)
	}
	if float64(j.v.Unknown) > j.b.MaxUnknown*float64(j.v.Attempts) {
		j.invalid("the outcome of %d of %d attempts is unknown", j.v.Unknown, j.v.Attempts)
	}
	for label, p := range j.procs {
		if !p.ended && p.killed == never {
			j.invalid("process %q was not killed by a recorded fault, and yet its history was not closed", label)
		}
	}
	if n := grants[j.quiet[0]]; n < j.b.MinGrants {
		j.invalid("%d grants before the first fault, want %d", n, j.b.MinGrants)
	}
	for _, w := range j.quiet[1:] {
		if (w.to == never || w.to-w.from >= j.b.Recover) && grants[w] == 0 {
			j.invalid("no grant after the fault that ended at %.6f", w.from.Seconds())
		}
	}
	slices.Sort(j.v.Invalid)
}

// writes compares each access to a protected resource with the highest token of the writes before (RuleStale).
func (j *judge) writes() {
	highest := map[string]*Event{}
	readers := j.readers()
	for i := range j.events {
		e := &j.events[i]
		if e.Kind != KindWrite && e.Kind != KindRead {
			continue
		}
		h := highest[e.Name]
		if r := readers[access{e.Name, e.Token}]; r != nil && e.Kind == KindWrite && e.OK && j.b.StoreFences {
			j.violation(RuleStale, "what a Read protects was written", r, e)
		}
		switch {
		case h != nil && h.Token > e.Token:
			j.v.StaleWrites++
			if e.OK {
				j.v.StaleAccepted++
			}
			if e.OK && j.b.StoreFences {
				j.violation(RuleStale, "an access was accepted although its token is stale", h, e)
			}
		case e.OK && e.Kind == KindWrite:
			highest[e.Name] = e
		}
	}
}

// access is a token used on what the lock of a name protects.
type access struct {
	name  string
	token uint64
}

// readers returns the grants of tokens that were given out for Reads alone. A Read inside of a hold in another mode has the
// token of that hold.
func (j *judge) readers() map[access]*Event {
	reads := map[access]*Event{}
	for _, l := range j.locks {
		for _, a := range l.holds {
			if a.reads() {
				reads[access{a.called.Name, a.returned.Token}] = a.returned
			}
		}
		for _, a := range l.holds {
			if len(reads) > 0 && !a.reads() {
				delete(reads, access{a.called.Name, a.returned.Token})
			}
		}
	}
	return reads
}
