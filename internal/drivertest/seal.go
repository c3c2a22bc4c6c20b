package drivertest

import (
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Kinds returns requests for holds that are carried in different ways, each for a name of its own below name.
func Kinds(name string) map[string]*driver.Request {
	return map[string]*driver.Request{"kept": Request(name + "/kept"), "fixed": Fixed(Request(name+"/fixed"), 30*time.Second)}
}

// Last returns the last token of a lease.
func Last(l driver.Lease) uint64 {
	first, n := l.Tokens()
	return first + uint64(n) - 1
}

// Seal fails the test if the name of the lease is not sealed.
func Seal(tb testing.TB, d driver.Sealer, l driver.Lease) {
	tb.Helper()
	if err := d.Seal(Guard(tb), l); err != nil {
		tb.Fatalf("Seal: %v", err)
	}
}

// Mark fails the test if the name of the lease is not marked.
func Mark(tb testing.TB, d driver.Marker, l driver.Lease, floor uint64) {
	tb.Helper()
	if err := d.Mark(Guard(tb), l, floor); err != nil {
		tb.Fatalf("Mark: %v", err)
	}
}

// IsSealed fails the test unless the driver says that the name is sealed, and with this last token.
func IsSealed(tb testing.TB, d interface {
	driver.Driver
	driver.Sealer
}, name string, last uint64) {
	tb.Helper()
	for _, r := range []*driver.Request{Request(name), NoWait(name), Fixed(Request(name), 30*time.Second)} {
		if l, err := d.Acquire(Guard(tb), r); err != driver.ErrSealed {
			tb.Errorf("Acquire: got %v, %v, want %v", l, err, driver.ErrSealed)
		}
	}
	if got, sealed, err := d.Sealed(Guard(tb), name); got != last || !sealed || err != nil {
		tb.Errorf("Sealed: got %d, %t, %v, want %d, true", got, sealed, err, last)
	}
}
