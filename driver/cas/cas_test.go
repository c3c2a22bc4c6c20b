package cas_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/castest"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

// TestConformance runs the suite in fake time on stores that can do more and
// less.
func TestConformance(t *testing.T) {
	for _, test := range []struct {
		name     string
		notifies bool
		o        cas.Options
	}{
		{"observed", false, cas.Options{}},
		{"clock", false, cas.Options{Clock: true}},
		{"rising", true, cas.Options{Rising: true}},
		{"no tokens", true, cas.Options{Clock: true, NoTokens: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.o.Name, test.o.Poll = "memory", 20*time.Millisecond
			conformance.Run(t, conformance.Harness{FakeTime: true, Backend: func(testing.TB) *conformance.Backend {
				m := &memory{clock: test.o.Clock, records: map[string]cas.Entry{}, calls: map[*func()]string{}}
				if test.notifies {
					return backend(notifying{m}, test.o)
				}
				return backend(m, test.o)
			}})
		})
	}
}

// backend is a backend whose clients have a link each.
func backend(s cas.Store, o cas.Options) *conformance.Backend {
	remove := func(tb testing.TB, name string, its func(hold string) bool) {
		if err := cas.Remove(context.Background(), s, o, name, its); err != nil {
			tb.Error(err)
		}
	}
	return &conformance.Backend{
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			one, link := castest.Disturb(tb, s)
			return cas.New(one, o), link
		},
		Expire: func(tb testing.TB, name string) { remove(tb, name, func(string) bool { return true }) },
		ExpireHold: func(tb testing.TB, name, hold string) {
			remove(tb, name, func(other string) bool { return other == hold })
		},
	}
}
