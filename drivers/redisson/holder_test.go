package redisson

import (
	"fmt"
	"os"
	"strings"
	"testing"

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
		})
	}
}

// TestInspectTellsHoldersOfACrowd inspects locks that were acquired by one
// combined request.
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
		t.Errorf("keys: got %q, want only the lock", keys)
	}
	release(t, l)
}

func TestConnectionsHaveAName(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	release(t, acquire(t, d, request("x")))
	host, _ := os.Hostname()
	if clients, want := s.Do("CLIENT", "LIST").(string), fmt.Sprintf("name=dsync-%s-%d ", host, os.Getpid()); !strings.Contains(clients, want) {
		t.Errorf("clients:\n%s\nwant a client with %q", clients, want)
	}
}
