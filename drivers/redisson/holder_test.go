package redisson

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// noted returns a request with an owner and a note.
func noted(name, owner, note string) *driver.Request {
	r := forLong(name)
	r.Owner, r.Note = owner, note
	return r
}

func TestInspectTellsTheHolder(t *testing.T) {
	s := testenv.Redis(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	here := fmt.Sprintf("%s:%d", host, os.Getpid())
	for _, parameters := range []string{"", "?fence=redisson", "?fair=true"} {
		t.Run(parameters, func(t *testing.T) {
			s.Do("FLUSHALL")
			d, other := openURL(t, "redisson://%s/%s", s.Addr, parameters), openURL(t, "redisson://%s/%s", s.Addr, parameters)
			inspect := func(name string) driver.Status {
				t.Helper()
				status, err := other.Inspect(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				return status
			}
			for _, note := range []string{"", "the leader of\nthree lines\n", "billing"} {
				r := noted("x", "an owner", note)
				l := acquire(t, d, r)
				if got := inspect("x"); got.Hold != r.Hold || got.Owner != r.Owner || got.Note != note || got.Process != here {
					t.Errorf("Inspect: got %+v, want the hold %s of %q in %s with the note %q", got, r.Hold, r.Owner, here, note)
				}
				release(t, l)
			}
			r := request("x")
			r.Owner = r.Hold // as it is for calls without an Owner of their own
			l := acquire(t, d, r)
			if got := inspect("x"); got.Owner != r.Hold || got.Process != here {
				t.Errorf("Inspect of a hold without an owner: got %+v", got)
			}
			release(t, l)
			if got := inspect("x"); got.Held || got.Hold+got.Owner+got.Note+got.Process != "" {
				t.Errorf("Inspect of a free lock: got %+v", got)
			}
			s.Do("HSET", "x", "java:1", "1")
			if got := inspect("x"); got.Hold != "java:1" || got.Owner+got.Note+got.Process != "" {
				t.Errorf("Inspect of a hold of Java: got %+v", got)
			}
			s.Do("DEL", "x")
			if got := s.Do("HGETALL", "x"); len(got.([]any)) > 0 {
				t.Errorf("hash: got %v", got)
			}
		})
	}
}

// TestInspectTellsHoldersOfACrowd: of locks that were taken by one request together.
func TestInspectTellsHoldersOfACrowd(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	parallel(100, func(i int) {
		name := fmt.Sprint("x", i)
		l := acquire(t, d, noted(name, "owner of "+name, "note of "+name))
		if got, err := d.Inspect(t.Context(), name); err != nil || got.Owner != "owner of "+name || got.Note != "note of "+name {
			t.Errorf("Inspect of %s: got %+v, %v", name, got, err)
		}
		release(t, l)
	})
}

func TestNothingIsNotedWithoutTokens(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s?fenced=false", s.Addr)
	l := acquire(t, d, noted("x", "owner", "note"))
	if keys := s.Do("KEYS", "*").([]any); len(keys) != 1 {
		t.Errorf("keys: got %q, want the lock alone", keys)
	}
	release(t, l)
}

// TestNotesOfLongHolds: the text about a holder lasts for an hour, and for as long as the hold.
func TestNotesOfLongHolds(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	const key = "dsync_holder:{x}"
	left := func() time.Duration { return time.Duration(s.Do("PTTL", key).(int64)) * time.Millisecond }
	l := acquire(t, d, noted("x", "owner", "note"))
	if got := left(); got < time.Hour-hangGuard || got > time.Hour {
		t.Errorf("TTL of the text: got %v, want an hour", got)
	}
	text := s.Do("GET", key)
	renew := func(how string, f func() error) {
		t.Helper()
		s.Do("DEL", key)
		l.notedUntil.Store(d.now() + int64(holderTTL/2) - 1) // as if it had been held for half an hour
		if err := f(); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		if got := s.Do("GET", key); got != text {
			t.Errorf("text after %s: got %q, want %q", how, got, text)
		}
		if got := left(); got < time.Hour-hangGuard || got > 2*time.Hour+hangGuard {
			t.Errorf("TTL of the text after %s: got %v", how, got)
		}
	}
	renewAll := func() (err error) {
		d.RenewAll(t.Context(), []driver.Lease{l}, func(_ int, e error) { err = e })
		return err
	}
	renew("RenewAll", renewAll)
	renew("Renew", func() error { return l.Renew(t.Context(), time.Minute) })
	got := counted(s, func() {
		if err := renewAll(); err != nil {
			t.Error(err)
		}
	}, "evalsha", "eval")
	if got["evalsha"]+got["eval"] != 1 {
		t.Errorf("scripts of a renewal soon after: got %v, want one", got)
	}
	if err := l.Renew(t.Context(), 5*time.Hour); err != nil {
		t.Error(err)
	}
	if got := left(); got < 5*time.Hour {
		t.Errorf("TTL of the text of a hold of 5 hours: got %v", got)
	}
	release(t, l)

	r := noted("x", "owner", "note")
	r.TTL = 3 * time.Hour
	l = acquire(t, d, r)
	if got := left(); got < r.TTL-hangGuard {
		t.Errorf("TTL of the text of a hold of %v: got %v", r.TTL, got)
	}
	s.Do("DEL", "x", key)
	l.notedUntil.Store(1)
	if err := renewAll(); err != driver.ErrNotHeld || s.Do("EXISTS", key) != int64(0) {
		t.Errorf("renewal of a hold that was lost: got %v, want ErrNotHeld and no text", err)
	}
}

// TestNobodyNeedsTheRightToNotes: users whose rights are from before there were any.
func TestNobodyNeedsTheRightToNotes(t *testing.T) {
	s := testenv.Redis(t)
	password := testenv.Password()
	s.Do("ACL", "SETUSER", "locker", "on", ">"+password, "~x", "~dsync_fence:{x}", "&*", "+@all")
	d := openURL(t, "redisson://locker:%s@%s", password, s.Addr)
	l := acquire(t, d, noted("x", "owner", "note"))
	status, err := d.Inspect(t.Context(), "x")
	if err != nil || status.Hold != l.request.Hold || status.Note != "" {
		t.Errorf("Inspect: got %+v, %v, want the hold without a note", status, err)
	}
	release(t, l)
}

func TestConnectionsHaveAName(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	release(t, acquire(t, d, request("x")))
	host, _ := os.Hostname()
	if clients, want := s.Do("CLIENT", "LIST").(string), fmt.Sprintf("name=dsync-%s-%d ", host, os.Getpid()); !strings.Contains(clients, want) {
		t.Errorf("clients:\n%s\nwant one that has %q", clients, want)
	}
}
