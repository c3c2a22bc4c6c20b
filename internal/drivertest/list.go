package drivertest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/go-dsync/dsync/driver"
)

// Listed returns the names that a driver lists, sorted and without duplicates.
// It fails the test if List yields anything after an error.
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
// the server is frozen, and also eventually ends by itself.
func ListOfSilentServer(t *testing.T, d driver.Driver, freeze, thaw func()) {
	t.Helper()
	freeze()
	defer thaw()
	ctx, cancel := context.WithCancel(t.Context())
	listing := make(chan error, 1)
	go func() { // ends when ctx ends
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
