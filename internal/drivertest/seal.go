package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// Kinds returns requests for all kinds of holds, each for its own name below
// name.
func Kinds(name string) map[string]*driver.Request {
	return map[string]*driver.Request{"kept": Request(name + "/kept"), "fixed": Fixed(Request(name+"/fixed"), 30*time.Second)}
}

// Last returns the last token of a lease.
func Last(l driver.Lease) uint64 {
	first, n := l.Tokens()
	return first + uint64(n) - 1
}

// Seal fails the test if the name of the lease is not sealed.
func Seal(tb testing.TB, d move.Sealer, l driver.Lease) {
	tb.Helper()
	if err := d.Seal(Guard(tb), l); err != nil {
		tb.Fatalf("Seal: %v", err)
	}
}

// Mark fails the test if the name of the lease is not marked.
func Mark(tb testing.TB, d move.Marker, l driver.Lease, floor uint64) {
	tb.Helper()
	if err := d.Mark(Guard(tb), l, floor); err != nil {
		tb.Fatalf("Mark: %v", err)
	}
}

// Unmark fails the test if the name of the lease may still be marked.
func Unmark(tb testing.TB, d move.Unmarker, l driver.Lease) {
	tb.Helper()
	if err := d.Unmark(Guard(tb), l); err != nil {
		tb.Fatalf("Unmark: %v", err)
	}
}

// Loosen fails the test if the seal of the name lacks the id.
func Loosen(tb testing.TB, d move.Unsealer, name, id string, floor uint64) {
	tb.Helper()
	if err := d.Loosen(Guard(tb), name, id, floor); err != nil {
		tb.Fatalf("Loosen: %v", err)
	}
}

// Unseal fails the test if the name may still be sealed.
func Unseal(tb testing.TB, d move.Unsealer, name, id string) {
	tb.Helper()
	if err := d.Unseal(Guard(tb), name, id); err != nil {
		tb.Fatalf("Unseal: %v", err)
	}
}

// LateUnseal lets b write another id to the seal of a name while a's request to
// unseal it is in progress. It fails the test unless a's request then has no
// effect. delay delays the request and returns a channel, or nil. The channel
// is closed when the request has reached the point of the delay. arrive lets
// the request continue.
func LateUnseal(tb testing.TB, a, b Unsealer, name string, delay func() <-chan struct{}, arrive func()) {
	tb.Helper()
	l := Acquire(tb, a, Request(name))
	Seal(tb, a, l)
	Loosen(tb, a, name, "a", 0)
	held := delay()
	late := make(chan error, 1)
	go func() { late <- a.Unseal(Guard(tb), name, "a") }() // ends after arrive
	if held != nil {
		<-held
	}
	Loosen(tb, b, name, "b", 0)
	arrive()
	WantErr(tb, "Unseal of "+name, <-late, driver.ErrNotHeld)
	IsSealed(tb, b, name, Last(l))
	Unseal(tb, b, name, "b")
	Release(tb, Acquire(tb, b, NoWait(name)))
}

// LateSeal delays a's requests to seal its hold by r and to release it until
// both are abandoned. It fails the test unless b then finds exactly one state:
// the name is sealed, or it is free. delay delays the requests and arrive lets
// them continue. If the requests are lost instead, the name must be free.
func LateSeal(tb testing.TB, a, b Sealer, r *driver.Request, delay, arrive func(), lost bool) {
	tb.Helper()
	l := Acquire(tb, a, r)
	delay()
	ctx, cancel := context.WithTimeout(tb.Context(), 50*time.Millisecond)
	defer cancel()
	WantErr(tb, "Seal of "+r.Name, a.Seal(ctx, l), driver.ErrUnknown)
	WantErr(tb, "Release of "+r.Name, l.Release(ctx), driver.ErrUnknown)
	arrive()
	next, err := b.Acquire(Guard(tb), Request(r.Name))
	if _, sealed, _ := b.Sealed(tb.Context(), r.Name); sealed != errors.Is(err, driver.ErrSealed) || err != nil && !sealed {
		tb.Errorf("%s: the next Acquire got %v, and Sealed reports %t", r.Name, err, sealed)
	}
	if lost && err != nil {
		tb.Errorf("%s: the next Acquire got %v after a seal that never arrived", r.Name, err)
	}
	if err == nil {
		Release(tb, next)
	}
}

// SurviveRestart fails the test unless a seal, a mark and a floor survive a
// restart of the server.
func SurviveRestart(tb testing.TB, d Marker, floor uint64, restart func()) {
	tb.Helper()
	old := Acquire(tb, d, Request("old"))
	Seal(tb, d, old)
	l := Acquire(tb, d, Request("new"))
	Mark(tb, d, l, floor)
	Release(tb, l)
	restart()
	IsSealed(tb, d, "old", Last(old))
	next := Acquire(tb, d, Request("new"))
	if marked, err := d.Marked(tb.Context(), next); !marked || err != nil || Token(l) <= floor || Token(next) <= Last(l) {
		tb.Errorf("after a restart: marked %t, %v, token %d after %d, want true, and tokens that rise from %d", marked, err, Token(next), Last(l), floor)
	}
	Release(tb, next)
}

// Sealer is a driver that seals.
type Sealer interface {
	driver.Driver
	move.Sealer
}

// Unsealer is a driver that can remove seals.
type Unsealer interface {
	Sealer
	move.Unsealer
}

// Marker is a driver that seals and marks.
type Marker interface {
	Sealer
	move.Marker
}

// IsSealed fails the test unless the driver reports that the name is sealed
// with this last token.
func IsSealed(tb testing.TB, d Sealer, name string, last uint64) {
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
