package migrate_test

import (
	"errors"
	"net/url"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// servers are two backends between which a name moves back and forth.
type servers struct {
	t        *testing.T
	from, to string // URLs
	more     string // parameters
	last     uint64 // token
}

// client returns a client in a phase.
func (s *servers) client(phase migrate.Phase) *migrate.Driver {
	s.t.Helper()
	address := "migrate:?from=" + url.QueryEscape(s.from) + "&to=" + url.QueryEscape(s.to) + s.more + "&phase=" + phase.String()
	return drivertest.Open(s.t, address).(*migrate.Driver)
}

// lock acquires the name for a moment, and checks that its tokens rise.
func (s *servers) lock(what string, d driver.Driver) {
	s.t.Helper()
	l := lock(s.t, d, "x")
	first, n := l.Tokens()
	if n > 0 && first <= s.last {
		s.t.Errorf("%s: got token %d after %d", what, first, s.last)
	}
	if n > 0 {
		s.last = first + uint64(n) - 1
	}
	release(s.t, l)
}

// move moves the name to the new backend.
func (s *servers) move(old driver.Driver) {
	s.t.Helper()
	for range 2 {
		s.lock("moved", s.client(migrate.PhaseNew))
	}
	_, err := try(old, "x")
	wantErr(s.t, "an old program, of a name that has moved", err, driver.ErrSealed)
}

func TestRollbackBetweenServers(t *testing.T) {
	redis, etcd, zk := "redisson://"+testenv.Redis(t).Addr, "etcd://"+testenv.Etcd(t).Addr, "zk://"+testenv.ZooKeeper(t).Addr
	for name, s := range map[string]servers{
		"zk to etcd":                   {from: zk + "/1", to: etcd + "/1/", more: "&require=fenced"},
		"zk to redisson":               {from: zk + "/2", to: redis + "/2", more: "&require=fenced"},
		"redisson to zk":               {from: redis + "/3", to: zk + "/3", more: "&require=fenced"},
		"redisson to etcd":             {from: redis + "/4", to: etcd + "/4/", more: "&require=fenced"},
		"etcd to zk, without tokens":   {from: etcd + "/5/", to: zk + "/5", more: "&fenced=false"},
		"etcd to redis without tokens": {from: etcd + "/6/", to: redis + "/6", more: "&fenced=false"},
	} {
		t.Run(name, func(t *testing.T) {
			s.t = t
			old := drivertest.Open(t, s.from)
			s.lock("an old program", old)
			for range 2 {
				s.move(old)
				c := s.client(migrate.PhaseDual)
				for range 2 { // the second time there is nothing to do
					if err := c.Rollback(drivertest.Guard(t), "x"); err != nil {
						t.Fatal(err)
					}
				}
				if moved, err := c.Moved(t.Context(), "x"); moved || err != nil {
					t.Errorf("Moved after the roll-back: got %t, %v, want false", moved, err)
				}
				s.lock("an old program after the roll-back", old)
				l := lock(t, old, "x")
				_, err := try(s.client(migrate.PhaseNew), "x")
				wantErr(t, "a client in phase new while an old program holds the name", err, driver.ErrLocked)
				release(t, l)
				s.lock("in phase dual after the roll-back", c)
			}
		})
	}
}

// TestRollbackToEtcdNeedsRevisionsAboveTheTokens has tokens of the new backend
// above the revisions of the old one. Then nothing changes. It works as soon as
// the revisions have passed the tokens.
func TestRollbackToEtcdNeedsRevisionsAboveTheTokens(t *testing.T) {
	s := servers{t: t, from: "etcd://" + testenv.Etcd(t).Addr, to: "etcd://" + testenv.Etcd(t).Addr, more: "&require=fenced"}
	old := drivertest.Open(t, s.from)
	s.lock("an old program", old)
	count := func(d driver.Driver, changes int) { // by locks of another name
		for range changes / 2 {
			release(t, lock(t, d, "y"))
		}
	}
	s.move(old)
	count(drivertest.Open(t, s.to), 100)
	c := s.client(migrate.PhaseDual)
	err := c.Rollback(drivertest.Guard(t), "x")
	wantErr(t, "Rollback", err, migrate.ErrNoWayBack)
	wantErr(t, "Rollback", err, errors.ErrUnsupported)
	s.lock("after a roll-back that was refused", c)
	_, err = try(old, "x")
	wantErr(t, "an old program after that", err, driver.ErrSealed)
	count(old, 200)
	if err := c.Rollback(drivertest.Guard(t), "x"); err != nil {
		t.Fatal(err)
	}
	s.lock("an old program after the roll-back", old)
	s.move(old)
}
