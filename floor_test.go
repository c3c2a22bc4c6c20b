package dsync_test

import (
	"errors"
	"testing"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// TestFloorIsAddedToEachToken also covers tokens that are passed on inside the
// process, and a floor in the URL, which takes precedence over the option.
func TestFloorIsAddedToEachToken(t *testing.T) {
	const floor = 1 << 50
	for url, want := range map[string]uint64{"memory://floor": 2 * floor, "memory://floor?floor=1125899906842624": floor, "memory://floor?floor=0": 0} {
		c, err := dsync.Open(t.Context(), url, &dsync.Options{Floor: 2 * floor})
		if err != nil {
			t.Fatal(err)
		}
		last := want
		for range 3 {
			l, err := c.Lock(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			s, err := c.Inspect(t.Context(), "x")
			if err != nil || l.Token() <= last || l.Token() > want+1000 || s.Token < l.Token() || s.Token > want+1000 {
				t.Errorf("%s: got token %d, and %d from Inspect, %v; want both slightly above %d", url, l.Token(), s.Token, err, last)
			}
			last = l.Token()
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, o := range []*dsync.Options{{Floor: 1}, {Floor: 1 << 63}} {
		if _, err := dsync.New(memory.New(&memory.Options{NoTokens: o.Floor == 1}), o); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("floor %d: got %v, want ErrUnsupported", o.Floor, err)
		}
	}
}
