// Package dsynctest creates clients for tests of programs that use locks.
// docs/testing.md shows how to use it.
package dsynctest

import (
	"testing"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// New returns a client with its own in-memory backend, and the client's driver,
// with which a test injects faults. The client is closed at the end of the
// test, or at the end of the bubble in a bubble of testing/synctest. A nil o
// means the default options.
func New(tb testing.TB, o *dsync.Options) (*dsync.Client, *memory.Driver) {
	tb.Helper()
	return newClient(tb, memory.New(nil), o)
}

// Beside returns a client that shares other's backend, as a client in another
// process would, and the client's driver.
func Beside(tb testing.TB, other *memory.Driver, o *dsync.Options) (*dsync.Client, *memory.Driver) {
	tb.Helper()
	return newClient(tb, other.Server().NewDriver(), o)
}

func newClient(tb testing.TB, d *memory.Driver, o *dsync.Options) (*dsync.Client, *memory.Driver) {
	tb.Helper()
	c, err := dsync.New(d, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		d.Heal() // so that Close need not wait for locks to expire
		if err := c.Close(tb.Context()); err != nil {
			tb.Errorf("dsynctest: %v", err)
		}
	})
	return c, d
}
