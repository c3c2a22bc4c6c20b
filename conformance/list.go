package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-dsync/dsync/driver"
)

// listIsTrue holds names that look alike, and compares them with what is listed.
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

// listsPolitely lists names of which there are several. The loop calls the
// driver, and ends early.
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
		return fmt.Errorf("%s yielded %d names in a List whose caller wanted one", d.label, yielded)
	}
	return nil
}

// list returns the names that d lists, each once. If the driver cannot list names, the check ends.
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
