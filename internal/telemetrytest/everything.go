package telemetrytest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// Everything triggers every event that telemetry reports. Spans, metrics and
// logs go to the destinations in o. It runs in a bubble of testing/synctest.
// The names of the locks have classes.
func Everything(t *testing.T, o dsync.Options) {
	t.Helper()
	o.TTL = 10 * time.Second
	o.Class = func(name string) string { class, _, _ := strings.Cut(name, "/"); return class }
	write := []dsync.LockOption{dsync.Write()}
	one, all := []dsync.LockOption{dsync.Permits(1, 3)}, []dsync.LockOption{dsync.Permits(3, 3)}
	for _, s := range []stage{{}, {mode: []dsync.LockOption{dsync.Read()}, alone: write}, {mode: write, alone: write}, {mode: one, alone: all}} {
		s.T, s.options, s.server = t, o, memory.NewServer(nil)
		s.play()
		s.trouble()
	}
	s := &stage{T: t, options: o, server: memory.NewServer(nil)}
	s.elections()
	sessions := &stage{T: t, options: o, server: memory.NewServer(&memory.Options{KeepsAlive: true})}
	sessions.loseSession()
	sessions.migrate()
}

type stage struct {
	*testing.T
	options dsync.Options
	server  *memory.Server
	mode    []dsync.LockOption // options for the mode of the locks
	alone   []dsync.LockOption // options of other clients that need them
}

func (s *stage) client() (*dsync.Client, *memory.Driver) {
	d := s.server.NewDriver()
	c, err := dsync.New(d, &s.options)
	if err != nil {
		s.Fatal(err)
	}
	return c, d
}

func (s *stage) lock(l dsync.Locker, name string, options ...dsync.LockOption) *dsync.Lease {
	s.Helper()
	lease, err := l.Lock(s.Context(), name, slices.Concat(s.mode, options)...)
	if err != nil {
		s.Fatal(err)
	}
	return lease
}

func (s *stage) unlock(leases ...*dsync.Lease) {
	s.Helper()
	for _, l := range leases {
		if err := l.Unlock(s.Context()); err != nil {
			s.Error(err)
		}
	}
}

// close closes clients, so that background work has been reported.
func (s *stage) close(clients ...*dsync.Client) {
	for _, c := range clients {
		_ = c.Close(context.Background())
	}
}

// play takes locks through all events without a failure.
func (s *stage) play() {
	a, _ := s.client()
	b, _ := s.client()
	defer s.close(a, b)
	owner := a.NewOwner()
	outer := s.lock(owner, "orders/1")
	s.unlock(s.lock(owner, "orders/1"))
	if _, err := b.TryLock(s.Context(), "orders/1", s.alone...); err == nil {
		s.Error("TryLock of a held lock succeeded")
	}
	short, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	if _, err := b.Lock(short, "orders/1", s.alone...); err == nil {
		s.Error("Lock of a held lock succeeded")
	}
	gone, leave := context.WithCancel(s.Context())
	time.AfterFunc(time.Second, leave)
	if _, err := b.Lock(gone, "orders/1", s.alone...); err == nil {
		s.Error("Lock of a held lock succeeded")
	}
	time.AfterFunc(5*time.Second, func() { s.unlock(outer) }) // the unlock comes after a renewal
	s.unlock(s.lock(b, "orders/1", s.alone...))
	s.lock(a, "orders/2") // ends when the client ends
}

// trouble loses locks that are renewed one by one.
func (s *stage) trouble() {
	a, d := s.client()
	b, _ := s.client()
	defer s.close(a, b)
	<-s.lock(a, "users/1", dsync.ExpireAfter(time.Second)).Done()
	removed := s.lock(a, "users/1")
	if err := b.ForceUnlock(s.Context(), "users/1"); err != nil {
		s.Error(err)
	}
	<-removed.Done()
	silently := s.lock(a, "users/2")
	s.server.Flush()
	<-silently.Done() // a renewal notices the loss
	recovers := s.lock(a, "users/3")
	d.Inject(memory.Fault{Kind: memory.CutOff, On: memory.Renewals, Times: 1})
	time.Sleep(s.options.TTL)
	s.unlock(recovers)
	lost := s.lock(a, "users/4")
	d.Inject(memory.Fault{Kind: memory.LoseAnswer, On: memory.Releases, Times: 1})
	if err := s.lock(a, "users/5").Unlock(s.Context()); err == nil {
		s.Error("an unanswered Unlock succeeded")
	}
	d.Cut()
	<-lost.Done()
	if _, err := a.TryLock(s.Context(), "users/4"); err == nil {
		s.Error("TryLock on a backend that is out of reach succeeded")
	}
	if err := a.ForceUnlock(s.Context(), "users/4"); err == nil {
		s.Error("ForceUnlock on a backend that is out of reach succeeded")
	}
	d.Heal()
	synctest.Wait()
}

// elections ends a leader, and candidates that are not elected.
func (s *stage) elections() {
	a, _ := s.client()
	b, _ := s.client()
	defer s.close(a, b)
	terms := 0
	_ = dsync.Elect(s.Context(), a, "planner/1", func(ctx context.Context, _ *dsync.Lease) error {
		if terms++; terms == 2 {
			short, cancel := context.WithTimeout(s.Context(), time.Second)
			defer cancel()
			if err := dsync.Elect(short, b, "planner/1", nil); err == nil {
				s.Error("Elect succeeded while another client leads")
			}
			return nil
		}
		if err := b.ForceUnlock(ctx, "planner/1"); err != nil {
			s.Error(err)
		}
		<-ctx.Done()
		return nil
	})
	lead := func(ctx context.Context, _ *dsync.Lease) error {
		s.close(a)
		<-ctx.Done()
		return nil
	}
	for range 2 {
		if err := dsync.Elect(s.Context(), a, "planner/1", lead); err == nil {
			s.Error("Elect with a closed client succeeded")
		}
	}
}

func (s *stage) loseSession() {
	c, d := s.client()
	defer s.close(c)
	l := s.lock(c, "users/1")
	d.EndSession()
	<-l.Done()
}

// inPhases is a driver that goes through phases.
type inPhases struct {
	*memory.Driver
	tell func(phase string)
}

func (d *inPhases) OnPhase(f func(phase string)) {
	d.tell = f
	f("old")
}

func (s *stage) migrate() {
	d := &inPhases{Driver: s.server.NewDriver()}
	c, err := dsync.New(d, &s.options)
	if err != nil {
		s.Fatal(err)
	}
	d.tell("dual")
	d.tell("new")
	s.close(c)
}
