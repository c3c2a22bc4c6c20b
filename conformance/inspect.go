package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of Inspect's results, other than whether a name is held.
var inspectChecks = []check{
	{"inspect/status", "Every field that Inspect returns is correct: owner, note, token, time of the grant, remaining TTL, and waiters.", statusIsTrue},
	{"inspect/list", "List yields the held names with a prefix, of every client and mode. It yields no free name, even with a limit or a latch.", listIsTrue},
}

// oddNotes are texts that have caused problems in some encoding.
var oddNotes = []string{"plain", "a \"quoted\" one\nof two lines | {and} more\\", "日本語 é 👩‍👩‍👧", strings.Repeat("n", 1024)}

func note(text string) option { return func(r *driver.Request) { r.Note = text } }

// statusUnit is the coarsest unit in which a backend reports the remaining TTL.
// It is also the maximum difference that the suite allows between the backend's
// clock and the local clock.
const statusUnit = time.Second

func statusIsTrue(e *env) error {
	e.claims(inspection)
	parts := []func(*env) error{statusOfHolds, statusTellsTime, statusTellsClients, statusNamesQueue}
	e.together("inspects a lock", len(parts), func(i int) error { return parts[i](e) })
	return nil
}

// status returns what d reports about name.
func (d *rawDriver) status(name string) (s driver.Status) {
	d.env.within("Inspect", func() {
		var err error
		s, err = d.driver.(driver.Inspector).Inspect(d.env.ctx, name)
		d.env.failed(err)
	})
	return s
}

// describedTo returns what d reports about a fixed lease, and an error if a
// field is wrong. Zero fields are unknown.
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
		return wrong("Hold", fmt.Sprintf("%q", s.Hold), "the identification of its client")
	case s.Hold == r.Hold && s.Owner != "" && s.Owner != r.Owner:
		// otherwise the owner is a stand-in, like the hold
		return wrong("Owner", fmt.Sprintf("%q", s.Owner), fmt.Sprintf("%q", r.Owner))
	case s.Note != "" && s.Note != r.Note:
		return wrong("Note", fmt.Sprintf("%.80q of %d bytes", s.Note, len(s.Note)), fmt.Sprintf("%.80q of %d bytes", r.Note, len(r.Note)))
	case n > 0 && s.Token != 0 && s.Token != first+uint64(n)-1:
		return wrong("Token", s.Token, fmt.Sprintf("the last of %d tokens from %d", n, first))
	case s.TTL != 0 && (s.TTL < left-statusUnit || s.TTL > max(r.TTL, e.long())+e.driverInfo().LateFor(r.TTL)+statusUnit):
		return wrong("TTL", s.TTL, fmt.Sprintf("at least %v, because the lease's Expires is that far away", left-statusUnit))
	case !s.Since.IsZero() && (s.Since.Before(r.called.Add(-statusUnit)) || s.Since.After(now.Add(statusUnit))):
		return wrong("Since", e.events.at(s.Since), fmt.Sprintf("between %s and %s", e.events.at(r.called), e.events.at(r.at)))
	}
	return s, nil
}

// known lists the fields of s that the backend stores.
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
				return fmt.Errorf("Inspect by %s reports the fields %s for one hold and %s for the next", asks.label, fields, known(s))
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
		return fmt.Errorf("Inspect reports that a lease that must be kept alive every %v lasts for %v", lasts, s.TTL)
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
			return fmt.Errorf("Inspect reports that a lease without renewals lasts for %v, and %v later for %v", first.TTL, statusUnit, second.TTL)
		case !second.Since.Equal(first.Since):
			return fmt.Errorf("Inspect reports that a lease was granted at %s, and then at %s", e.events.at(first.Since), e.events.at(second.Since))
		}
	}
	return nil
}

// statusTellsClients inspects holds that differ only in their clients.
func statusTellsClients(e *env) error {
	a, b := e.driver(), e.driver()
	of := func(d *rawDriver) string {
		return e.outsider().status(d.hold(e.name(), owner("one"), note("one")).Name).Hold
	}
	if x, y := of(a), of(b); x == y {
		return fmt.Errorf("Inspect reports %q for the holds of %s and of %s, which does not distinguish them", x, a.label, b.label)
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
		return fmt.Errorf("Inspect counts %d waiters but names %d: %q", s.Waiters, len(s.Queue), s.Queue)
	}
	last := -1
	for _, who := range s.Queue {
		i := slices.IndexFunc(waiters, func(r *request) bool { return r.Owner == who || r.Hold == who })
		if i >= 0 && i < last && e.driverInfo().Order != driver.Unordered {
			return fmt.Errorf("Inspect names %s behind %s, which arrived later: %q", waiters[i].driver.label, waiters[last].driver.label, s.Queue)
		}
		last = max(last, i)
	}
	return nil
}

// listIsTrue holds similar names and compares them with the listed names.
func listIsTrue(e *env) error {
	a, b := e.driver(), e.driver()
	base := e.name()
	long := base + "/" + strings.Repeat("l", 64)
	held := []string{
		base, base + "/below", base + "/below/twice", base + "-beside", base + "/ % %2F \"é\" * ? [x]",
		base + "/x" + base + "/b", long + "/a", long + "/b", long + "/a" + strings.Repeat("m", 600),
	}
	free := base + "/below-free"
	b.hold(free).release()
	for i, name := range held {
		by := a
		if i%2 > 0 {
			by = b
		}
		by.hold(name, fixed)
	}
	if e.driverInfo().Offers(driver.Read) {
		a.mode = driver.Read
		held = append(held, base+"/read")
		a.hold(base+"/read", fixed)
	}
	if e.driverInfo().Offers(driver.Permit) {
		held = append(held, base+"/permits")
		b.hold(base+"/permits", permits(1, 2), fixed)
	}
	e.driver().start(base + "/below").waits()
	if l, ok := a.tap.Driver.(driver.Limiter); ok && e.driverInfo().Permits.Offered {
		e.within("SetLimit", func() { e.must(l.SetLimit(e.ctx, base+"/limit", 3)) })
	}
	if _, ok := a.tap.Driver.(driver.Latcher); ok {
		a.latch(base + "/latch").set(3)
	}
	for _, prefix := range []string{base, base + "/b", long + "/a", base + "/ % %2", base + "/nothing"} {
		var want []string
		for _, name := range held {
			if len(name) >= len(prefix) && name[:len(prefix)] == prefix {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		for _, d := range []*rawDriver{b, e.outsider()} {
			if got := d.list(prefix); !slices.Equal(got, want) {
				return fmt.Errorf("%s: List of %q yields %q, want %q", d.label, prefix, got, want)
			}
		}
	}
	return b.listsPolitely(base)
}

// listsPolitely lists several names in a loop that calls the driver and ends
// early.
func (d *rawDriver) listsPolitely(prefix string) error {
	names := d.tap.Driver.(driver.Lister).List(d.env.ctx, prefix)
	yielded := 0
	d.env.within("a List whose caller calls the driver", func() {
		names(func(string, error) bool {
			yielded++
			d.hold(d.env.name()).release()
			return false
		})
	})
	if yielded != 1 {
		return fmt.Errorf("the List by %s yielded %d names to a caller that wanted one", d.label, yielded)
	}
	return nil
}

// list returns the names that d lists, each once. If the driver cannot list
// names, the check ends.
func (d *rawDriver) list(prefix string) (names []string) {
	lister, ok := d.tap.Driver.(driver.Lister)
	if !ok {
		d.env.end(&refusedError{"to list names"})
	}
	d.env.within("List", func() {
		for name, err := range lister.List(d.env.ctx, prefix) {
			if errors.Is(err, errors.ErrUnsupported) {
				d.env.end(&refusedError{"to list names"})
			}
			d.env.failed(err)
			names = append(names, name)
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// The checks of Inspect and List with many holds, odd names, and a backend that
// does not answer.
var observeChecks = []check{
	{"inspect/outage", "If the backend does not answer, Inspect, List and Latch return an error and never report a name as free.", outageIsNoAnswer},
	{"inspect/fields", "If a name has several holds, the owner, note, grant and TTL that Inspect reports all belong to the same hold, in every mode.", fieldsOfOneHold},
	{"inspect/waiters", "Inspect counts at least one waiter for each client that waits and at most one for each request, and no waiter that has given up.", waitersAreCounted},
	{"inspect/names", "List takes a prefix literally, even if its characters are special on the backend. It yields names with any byte, and all names for an empty prefix.", namesAreListed},
	{"inspect/many", "List yields all of 2,000 names.", manyAreListed},
	{"inspect/dead", "A hold whose client is out of reach is listed and reported until it ends, but no longer.", deadAreNotListed},
}

// lists reports whether the driver can list names.
func (d *rawDriver) lists() bool {
	lister, ok := d.tap.Driver.(driver.Lister)
	if !ok {
		return false
	}
	can := true
	d.env.within("List", func() {
		for _, err := range lister.List(d.env.ctx, d.env.name()) {
			can = !errors.Is(err, errors.ErrUnsupported)
		}
	})
	return can
}

func outageIsNoAnswer(e *env) error {
	e.claims(inspection)
	a, name := e.driver(), e.name()
	a.hold(name)
	latcher, _ := a.tap.Driver.(driver.Latcher)
	latch := e.name()
	if latcher != nil {
		a.latch(latch).set(1)
	}
	lists := a.lists()
	var faults []func(*connection)
	for _, fault := range []struct {
		able   bool
		inject func(*connection)
	}{
		{a.link.Hang != nil, (*connection).hang},
		{a.link.Cut != nil, (*connection).cut},
		{a.link.LoseAnswers != nil, (*connection).loseAnswers},
	} {
		if fault.able {
			faults = append(faults, fault.inject)
		}
	}
	e.need(len(faults) > 0, "Link.Hang")
	e.together("queries during an outage", len(faults), func(i int) error {
		d := e.driver()
		if s := d.status(name); !s.Held {
			return fmt.Errorf("Inspect by %s reports that %q is free, which %s holds", d.label, name, a.label)
		}
		own, forced := d.hold(e.name()), a.hold(e.name())
		faults[i](d.connection)
		asks := func(what string, f func(context.Context) (string, error)) {
			ctx, cancel := context.WithTimeout(e.ctx, patience)
			defer cancel()
			var said string
			var err error
			e.within(what, func() { said, err = f(ctx) })
			e.events.add(d.label, "%s during an outage: %s", what, outcome(err))
			if err == nil {
				e.failed(fmt.Errorf("%s by %s, whose backend does not answer, returned %s and no error", what, d.label, said))
			}
		}
		asks("Inspect", func(ctx context.Context) (string, error) {
			s, err := d.driver.(driver.Inspector).Inspect(ctx, name)
			return fmt.Sprintf("held: %t", s.Held), err
		})
		asks("Inspect of its own hold", func(ctx context.Context) (string, error) {
			s, err := d.driver.(driver.Inspector).Inspect(ctx, own.Name)
			return fmt.Sprintf("held: %t", s.Held), err
		})
		if f, ok := d.driver.(driver.ForceUnlocker); ok {
			asks("ForceUnlock", func(ctx context.Context) (string, error) {
				err := f.ForceUnlock(ctx, forced.Name)
				if errors.Is(err, driver.ErrNotHeld) {
					return "ErrNotHeld", nil
				}
				return "nil", err
			})
		}
		if lists {
			asks("List", func(ctx context.Context) (string, error) {
				var names []string
				var failed error
				for listed, err := range d.tap.Driver.(driver.Lister).List(ctx, name) {
					if failed != nil {
						return fmt.Sprintf("an error, and then %q", listed), nil
					}
					if failed = err; err == nil {
						names = append(names, listed)
					}
				}
				return fmt.Sprintf("%q", names), failed
			})
		}
		if latcher != nil {
			asks("Latch", func(ctx context.Context) (string, error) {
				left, err := d.tap.Driver.(driver.Latcher).Latch(ctx, latch)
				return fmt.Sprintf("the count %d", left), err
			})
		}
		d.heal()
		return nil
	})
	return nil
}

func fieldsOfOneHold(e *env) error {
	e.claims(inspection)
	offered := e.offered(allModes)
	e.together("looks at the fields of several holds", len(offered), func(i int) error { return e.fieldsInMode(offered[i]) })
	return nil
}

func (e *env) fieldsInMode(m driver.Mode) error {
	a, b, c, name := e.driver(), e.driver(), e.driver(), e.name()
	by := []*rawDriver{a, b, a, c}
	if m.Excludes(m) {
		by = by[:1]
	}
	var held []*request
	for i, d := range by {
		opts := []option{in(m), fixed, owner(fmt.Sprintf("owner %d", i)), note(fmt.Sprintf("note %d", i)), ttl(e.allowed(e.long() - time.Duration(i)*e.long()/10))}
		if m == driver.Permit {
			opts = append(opts, permits(1, len(by)))
		}
		held = append(held, d.hold(name, opts...))
		if e.fakeTime {
			e.sleep(3 * statusUnit) // the grants differ in their times
		}
		for _, asks := range []*rawDriver{a, e.outsider()} {
			s := asks.status(name)
			if err := e.fits(s, held); err != nil {
				return fmt.Errorf("Inspect by %s of a name with %d holds in mode %v: %w", asks.label, len(held), m, err)
			}
		}
	}
	before := a.status(name)
	for _, h := range held {
		e.must(h.renew(e.long()))
	}
	after := a.status(name)
	if before.Hold == after.Hold && !before.Since.Equal(after.Since) {
		return fmt.Errorf("Inspect of a name held as %v reports a grant at %s before a renewal and at %s after it", m, e.events.at(before.Since), e.events.at(after.Since))
	}
	return nil
}

// fits returns an error unless the fields of s match one of the holds. A
// backend that does not distinguish Write from Exclusive reports Exclusive.
func (e *env) fits(s driver.Status, held []*request) error {
	m := held[0].Mode
	if s.Mode != m && !(m == driver.Write && s.Mode == driver.Exclusive) {
		return fmt.Errorf("the mode is %v, want %v", s.Mode, m)
	}
	if !s.Held || s.Holders != len(held) && (s.Holders != 0 || m == driver.Read || m == driver.Permit) {
		return fmt.Errorf("held: %t, by %d holds, want %d", s.Held, s.Holders, len(held))
	}
	known := slices.ContainsFunc(held, func(r *request) bool { return r.Hold == s.Hold })
	var wrong []string
	for _, r := range held {
		left := time.Until(r.lease.Expires())
		var fields []string
		add := func(is bool, field string) {
			if is {
				fields = append(fields, field)
			}
		}
		add(known && s.Hold != r.Hold, "Hold")
		add(known && s.Owner != "" && s.Owner != r.Owner, "Owner")
		add(s.Note != "" && s.Note != r.Note, "Note")
		add(s.TTL != 0 && s.TTL < left-statusUnit, "TTL")
		add(!s.Since.IsZero() && (s.Since.Before(r.called.Add(-statusUnit)) || s.Since.After(r.at.Add(statusUnit))), "Since")
		if len(fields) == 0 {
			return nil
		}
		wrong = append(wrong, fmt.Sprintf("%s of %q", strings.Join(fields, ", "), r.Owner))
	}
	return fmt.Errorf("Inspect returned owner %q, note %q, since %s and TTL %v, which match no single hold: the status differs in %s", s.Owner, s.Note, e.events.at(s.Since), s.TTL, strings.Join(wrong, ", and in "))
}

func waitersAreCounted(e *env) error {
	e.claims(inspection)
	a, name := e.driver(), e.name()
	if s := a.status(name); s.Waiters > 0 || len(s.Queue) > 0 {
		return fmt.Errorf("Inspect of an unused name counts %d waiters and names %q", s.Waiters, s.Queue)
	}
	h := a.hold(name)
	clients := []*rawDriver{e.driver(), e.driver(), e.driver()}
	by := slices.Clone(clients)
	if e.driverInfo().Order == driver.FIFO { // otherwise only one request of a client waits at a time
		by = append(by, clients[0], clients[0])
	}
	waiting := e.lineOfClients(name, by, len(clients))
	counts := func(least, most int) {
		e.poll(fmt.Sprintf("Inspect of %q counts %d to %d waiters", name, least, most), func() error {
			for _, d := range []*rawDriver{a, e.outsider()} {
				s := d.status(name)
				if s.Waiters >= 0 && (s.Waiters < least || s.Waiters > most) || s.Waiters >= 0 && len(s.Queue) > s.Waiters || len(s.Queue) > most {
					return fmt.Errorf("Inspect by %s counts %d waiters and names %q", d.label, s.Waiters, s.Queue)
				}
			}
			return nil
		})
	}
	counts(len(clients), len(by))
	waiting[1].cancel()
	if err := waiting[1].result().endedBy(context.Canceled); err != nil {
		return err
	}
	counts(len(clients)-1, len(by)-1)
	h.release()
	for left := slices.Delete(waiting, 1, 2); len(left) > 0; {
		i := e.next(left)
		left = slices.Delete(left, i, i+1)
	}
	counts(0, 0)
	return nil
}

// lineOfClients makes the clients wait for name. It observes each of the first
// n requests in the queue before it starts the next one.
func (e *env) lineOfClients(name string, by []*rawDriver, n int) []*request {
	waiting := e.lineOf(name, by[:n])
	for _, d := range by[n:] {
		waiting = append(waiting, d.start(name).waits())
	}
	return waiting
}

// meant are characters that have a special meaning in the patterns of some
// backends.
const meant = `%_*?[]\^{}.+'"aA/` + "\n"

func namesAreListed(e *env) error {
	a, asks := e.driver(), e.driver()
	if !asks.lists() {
		asks.list(e.name()) // ends the check
	}
	base := e.name() + "|"
	var names []string
	for c := rune(1); c <= '\x7f'; c++ {
		names = append(names, base+string(c)+"x")
	}
	for _, c := range "é\u0301ßÀ日\u200b\u202e\ufeff\ufffd\U0010ffff" {
		names = append(names, base+string(c)+"x")
	}
	held := make([]bool, len(names))
	e.together("holds of names with any byte", len(names), func(i int) error {
		r := a.acquire(names[i], noWait, fixed)
		if held[i] = r.lease != nil; !held[i] && !errors.Is(r.err, errors.ErrUnsupported) {
			return fmt.Errorf("the free name %q cannot be held: %w", names[i], r.err)
		}
		return nil
	})
	prefixes := []string{base, strings.ToUpper(base), ""}
	for _, c := range meant {
		prefixes = append(prefixes, base+string(c))
	}
	for _, prefix := range prefixes {
		var want []string
		for i, name := range names {
			if held[i] && strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		got := asks.list(prefix)
		if prefix == "" { // others hold names, too
			got = slices.DeleteFunc(got, func(name string) bool { return !strings.HasPrefix(name, base) })
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s: List of %q yields %s", asks.label, prefix, differs(got, want))
		}
	}
	return nil
}

// differs describes the differences between the listed names and the expected
// ones.
func differs(got, want []string) string {
	var missing, odd []string
	for _, name := range want {
		if !slices.Contains(got, name) {
			missing = append(missing, name)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			odd = append(odd, name)
		}
	}
	return fmt.Sprintf("%d names, want %d; these are missing: %.300q; these are unexpected: %.300q", len(got), len(want), missing, odd)
}

func manyAreListed(e *env) error {
	n := 2000
	if e.sample {
		n = 1100 // more than a page of the usual size
	}
	asks, base := e.driver(), e.name()+"/"
	if !asks.lists() {
		asks.list(e.name()) // ends the check
	}
	const clients = 3
	want := make([]string, n)
	e.together("holds of many names", clients, func(i int) error {
		d := e.driver()
		for k := i; k < n; k += clients {
			want[k] = fmt.Sprintf("%s%d", base, k)
			d.hold(want[k], fixed)
		}
		return nil
	})
	slices.Sort(want)
	if got := asks.list(base); !slices.Equal(got, want) {
		return fmt.Errorf("%s: List of %q yields %s", asks.label, base, differs(got, want))
	}
	return nil
}

func deadAreNotListed(e *env) error {
	if e.driverInfo().Expiry == driver.Observed {
		e.end(&refusedError{"to end a hold by itself"})
	}
	e.claims(inspection)
	return e.inOutages(func(outage func(*connection)) error {
		a, asks, name := e.driver(), e.driver(), e.name()
		lists := asks.lists()
		t := ttl(e.allowed(2 * e.ttl()))
		held := []*request{a.hold(name+"/fixed", fixed, t), a.hold(name+"/kept", t)}
		seen := func(want bool) error {
			var listed []string
			if lists { // read before Inspect, during which a backend may end a hold
				listed = asks.list(name)
			}
			for _, h := range held {
				if lists && slices.Contains(listed, h.Name) != want {
					return fmt.Errorf("the list by %s yields %q: %t, want %t", asks.label, h.Name, !want, want)
				}
				if s := asks.status(h.Name); s.Held != want {
					return fmt.Errorf("Inspect by %s of %q: held %t, want %t", asks.label, h.Name, s.Held, want)
				}
			}
			return nil
		}
		if err := seen(true); err != nil {
			return err
		}
		outage(a.connection)
		for _, h := range held {
			e.expired(h)
		}
		e.poll("a hold that has ended is not reported", func() error { return seen(false) })
		return nil
	})
}
