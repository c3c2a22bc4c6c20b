package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of what Inspect says, beside whether a name is held.
var inspectChecks = []check{
	{"inspect/status", "What Inspect says of a hold is true, field by field: owner, note, token, grant, what is left of the TTL, and who waits.", statusIsTrue},
	{"inspect/list", "List yields the names with a prefix that are held, by whomever and in whatever mode, and none that is free, also if it has a limit or is that of a latch.", listIsTrue},
}

// oddNotes are texts that some encoding has stumbled over.
var oddNotes = []string{"plain", "a \"quoted\" one\nof two lines | {and} more\\", "日本語 é 👩‍👩‍👧", strings.Repeat("n", 1024)}

func note(text string) option { return func(r *driver.Request) { r.Note = text } }

// statusUnit is the coarsest unit in which a backend counts the rest of a TTL, and how much its clock may differ from this one.
const statusUnit = time.Second

func statusIsTrue(e *env) error {
	e.claims(inspection)
	parts := []func(*env) error{statusOfHolds, statusTellsTime, statusTellsClients, statusNamesQueue}
	e.together("looks at what is known of a lock", len(parts), func(i int) error { return parts[i](e) })
	return nil
}

// status returns what d knows of name.
func (d *rawDriver) status(name string) (s driver.Status) {
	d.env.within("Inspect", func() {
		var err error
		s, err = d.driver.(driver.Inspector).Inspect(d.env.ctx, name)
		d.env.failed(err)
	})
	return s
}

// describedTo returns what d knows of a fixed lease, and an error if a field is wrong. Fields that are zero are not known.
func (r *request) describedTo(d *rawDriver) (driver.Status, error) {
	e := r.driver.env
	s := d.status(r.Name)
	left, now := time.Until(r.lease.Expires()), time.Now()
	wrong := func(field string, got, want any) (driver.Status, error) {
		return s, fmt.Errorf("Inspect by %s of a name that %s holds: %s is %v, want %v", d.label, r.driver.label, field, got, want)
	}
	first, n := r.lease.Tokens()
	switch {
	case !s.Held || s.Hold == "":
		return wrong("Hold", fmt.Sprintf("%q", s.Hold), "what tells its client from others")
	case s.Hold == r.Hold && s.Owner != "" && s.Owner != r.Owner: // otherwise the owner is a stand-in, as the hold is
		return wrong("Owner", fmt.Sprintf("%q", s.Owner), fmt.Sprintf("%q", r.Owner))
	case s.Note != "" && s.Note != r.Note:
		return wrong("Note", fmt.Sprintf("%.80q of %d bytes", s.Note, len(s.Note)), fmt.Sprintf("%.80q of %d bytes", r.Note, len(r.Note)))
	case n > 0 && s.Token != 0 && s.Token != first+uint64(n)-1:
		return wrong("Token", s.Token, fmt.Sprintf("the last of %d tokens from %d", n, first))
	case s.TTL != 0 && (s.TTL < left-statusUnit || s.TTL > max(r.TTL, e.long())+e.driverInfo().LateFor(r.TTL)+statusUnit):
		return wrong("TTL", s.TTL, fmt.Sprintf("at least %v, since Expires of the lease says that so much is left", left-statusUnit))
	case !s.Since.IsZero() && (s.Since.Before(r.called.Add(-statusUnit)) || s.Since.After(now.Add(statusUnit))):
		return wrong("Since", e.events.at(s.Since), fmt.Sprintf("between %s and %s", e.events.at(r.called), e.events.at(r.at)))
	}
	return s, nil
}

// known lists the fields of s that are known.
func known(s driver.Status) string {
	var fields []string
	for name, zero := range map[string]bool{
		"Owner": s.Owner == "", "Note": s.Note == "", "Since": s.Since.IsZero(), "TTL": s.TTL == 0, "Token": s.Token == 0,
	} {
		if !zero {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	return strings.Join(fields, ", ")
}

func statusOfHolds(e *env) error {
	a, b := e.driver(), e.driver()
	for _, asks := range []*rawDriver{a, b} {
		var fields string
		for i, text := range oddNotes {
			name := e.name()
			b.hold(name, owner("the one before"), note("of the one before")).release()
			h := a.hold(name, fixed, owner(fmt.Sprintf("%-64s", fmt.Sprintf("%s \"é\" | %d", e.id, i))[:63]+"o"), note(text), block(5))
			s, err := h.describedTo(asks)
			if err != nil {
				return err
			}
			if i > 0 && known(s) != fields {
				return fmt.Errorf("Inspect by %s tells %s of one hold, and %s of the next", asks.label, fields, known(s))
			}
			fields = known(s)
			h.release()
		}
	}
	return nil
}

func statusTellsTime(e *env) error {
	a := e.driver()
	kept := a.hold(e.name(), ttl(e.renewed()))
	lasts := kept.TTL
	if s, ok := untap(kept.lease).Lease.(driver.SessionLease); ok {
		_, of := s.Session()
		lasts = max(lasts, of)
	}
	if s := e.outsider().status(kept.Name); s.TTL > lasts+e.driverInfo().LateFor(lasts)+statusUnit {
		return fmt.Errorf("Inspect says that a lease which has to be kept alive every %v lasts for %v", lasts, s.TTL)
	}
	kept.release()
	h := a.hold(e.name(), fixed, ttl(e.allowed(e.long()/2)))
	for i, asks := range []*rawDriver{a, e.outsider()} {
		if i > 0 {
			e.must(h.renew(e.long()))
		}
		first, err := h.describedTo(asks)
		if err != nil {
			return err
		}
		e.sleep(statusUnit + statusUnit/10)
		second, err := h.describedTo(asks)
		switch {
		case err != nil:
			return err
		case first.TTL != 0 && second.TTL >= first.TTL:
			return fmt.Errorf("Inspect says that a lease which nobody renewed lasts for %v, and %v later for %v", first.TTL, statusUnit, second.TTL)
		case !second.Since.Equal(first.Since):
			return fmt.Errorf("Inspect says that a lease was granted at %s, and then at %s", e.events.at(first.Since), e.events.at(second.Since))
		}
	}
	return nil
}

// statusTellsClients looks at holds that differ in nothing but their clients.
func statusTellsClients(e *env) error {
	a, b := e.driver(), e.driver()
	of := func(d *rawDriver) string {
		return e.outsider().status(d.hold(e.name(), owner("one"), note("one")).Name).Hold
	}
	if x, y := of(a), of(b); x == y {
		return fmt.Errorf("Inspect says %q of the holds of %s and of %s, which does not tell them apart", x, a.label, b.label)
	}
	return nil
}

func statusNamesQueue(e *env) error {
	a, name := e.driver(), e.name()
	a.hold(name)
	waiters := e.line(name, 4)
	s := e.outsider().status(name)
	if len(s.Queue) == 0 {
		return nil
	}
	if s.Waiters >= 0 && len(s.Queue) != s.Waiters {
		return fmt.Errorf("Inspect counts %d waiters, and names %d: %q", s.Waiters, len(s.Queue), s.Queue)
	}
	last := -1
	for _, who := range s.Queue {
		i := slices.IndexFunc(waiters, func(r *request) bool { return r.Owner == who || r.Hold == who })
		if i >= 0 && i < last && e.driverInfo().Order != driver.Unordered {
			return fmt.Errorf("Inspect names %s behind %s, which came later: %q", waiters[i].driver.label, waiters[last].driver.label, s.Queue)
		}
		last = max(last, i)
	}
	return nil
}
