package drivertest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/go-dsync/dsync/driver"
)

// Listed returns the names that a driver lists, each once and in order. The
// error is the last thing that a List may yield.
func Listed(tb testing.TB, ctx context.Context, d driver.Driver, prefix string) (names []string, err error) {
	tb.Helper()
	for name, one := range d.(driver.Lister).List(ctx, prefix) {
		if err != nil {
			tb.Errorf("List yields %q and %v after %v", name, one, err)
		}
		if err = one; err == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// ListOfSilentServer fails the test unless a List ends with its context while
// the server stands still, and by itself in the end.
func ListOfSilentServer(t *testing.T, d driver.Driver, freeze, thaw func()) {
	t.Helper()
	freeze()
	defer thaw()
	ctx, cancel := context.WithCancel(t.Context())
	listing := make(chan error, 1)
	go func() { // ends with ctx
		_, err := Listed(t, ctx, d, "")
		listing <- err
	}()
	cancel()
	returns(t, "List with a context that has ended", func() {
		if err := <-listing; !errors.Is(err, context.Canceled) {
			t.Errorf("List with a context that has ended: got %v", err)
		}
	})
	returns(t, "List", func() {
		if names, err := Listed(t, t.Context(), d, ""); err == nil {
			t.Errorf("List of a silent server: got %q, want an error", names)
		}
	})
}
