package cas_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
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
				m := &memory{clock: test.o.Clock, notifies: test.notifies}
				return m.backend(test.o)
			}})
		})
	}
}

// backend is a backend whose clients have a link each.
func (m *memory) backend(o cas.Options) *conformance.Backend {
	remove := func(tb testing.TB, name string, its func(hold string) bool) {
		if err := cas.Remove(context.Background(), m.store(nil), o, name, its); err != nil {
			tb.Error(err)
		}
	}
	return &conformance.Backend{
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			n := newNetwork(m)
			tb.Cleanup(n.end)
			return cas.New(m.store(n), o), n.link()
		},
		Expire: func(tb testing.TB, name string) { remove(tb, name, func(string) bool { return true }) },
		ExpireHold: func(tb testing.TB, name, hold string) {
			remove(tb, name, func(other string) bool { return other == hold })
		},
	}
}
