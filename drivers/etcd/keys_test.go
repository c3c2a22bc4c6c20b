package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestKeysAreUsedAgain has consecutive locks of a name. Until its next
// compaction, the server keeps every key that ever existed, and goes through
// all keys of a name at every lock.
func TestKeysAreUsedAgain(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, a, request("a"))
	first := keys(t, c, "a/")[0]
	if _, err := a.Acquire(t.Context(), noWait("a")); err != driver.ErrLocked {
		t.Errorf("a try: got %v, want %v", err, driver.ErrLocked)
	}
	w := wait(t, a, request("a"))
	second := keys(t, c, "a/")[1]
	if second == first {
		t.Errorf("keys of two concurrent holds: got %q twice", first)
	}
	w.Cancel()
	if _, err := w.End(t); err == nil {
		t.Error("a canceled request was granted the lock")
	}
	release(t, l)
	for range 20 {
		l := acquire(t, a, request("a"))
		w := wait(t, a, request("a"))
		other := wait(t, b, request("a"))
		for _, key := range keys(t, c, "a/")[:2] {
			if key != first && key != second {
				t.Errorf("key: got %q, want %q or %q", key, first, second)
			}
		}
		release(t, l)
		release(t, w.Granted(t))
		release(t, other.Granted(t))
	}
}

// TestKeyOfALateReleaseIsNotUsedAgain has the request of a release reach the
// server long after its caller has left. It must not delete the key of the next
// hold.
func TestKeyOfALateReleaseIsNotUsedAgain(t *testing.T) {
	s := testenv.Etcd(t)
	slow, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	l := acquire(t, d, request("a"))
	old := keys(t, c, "a/")[0]
	slow.Hold(wire.Requests)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wantErr(t, "Release", l.Release(ctx), driver.ErrUnknown)
	slow.Heal()
	next := acquire(t, d, request("a"))
	if got := keys(t, c, "a/"); len(got) != 1 || got[0] == old {
		t.Errorf("keys: got %q, want one key other than %q", got, old)
	}
	release(t, next)
}
