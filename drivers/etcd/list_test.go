package etcd_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// contenders puts keys with a lease, and other keys, some at a time.
func contenders(t *testing.T, c *clientv3.Client, lease clientv3.LeaseID, keys ...string) {
	t.Helper()
	for some := range slices.Chunk(keys, 100) {
		var puts []clientv3.Op
		for _, key := range some {
			puts = append(puts, clientv3.OpPut(key, "", clientv3.WithLease(lease)))
		}
		if _, err := c.Txn(guard(t)).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListOfManyNames(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	grant, err := c.Grant(guard(t), 600)
	if err != nil {
		t.Fatal(err)
	}
	var keys, want []string
	for i := range 2500 {
		want = append(want, fmt.Sprintf("n%04d/below", i))
		keys = append(keys, fmt.Sprintf("locks/n%04d/below/%x", i, grant.ID))
	}
	contenders(t, c, grant.ID, keys...)
	contenders(t, c, clientv3.NoLease, "locks/n0000/below/0123456789abcdef", "locks/other/0123456789abcdef", "locks/"+strings.Repeat("x", 100))
	contenders(t, c, grant.ID, "locks/other/session", fmt.Sprintf("locks0/%x", grant.ID), fmt.Sprintf("lock/%x", grant.ID))
	d := openURL(t, "etcd://%s/locks/", s.Addr)
	before := s.Requests()["Txn"]
	got, err := drivertest.Listed(t, t.Context(), d, "")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("List: got %d names and %v, want %d", len(got), err, len(want))
	}
	if requests := s.Requests()["Txn"] - before; requests != 6 { // 3 pages, and what looks like contenders on each
		t.Errorf("List: got %d requests, want 6", requests)
	}
}

// TestListWhileAHoldMoves has a name change hands behind the end of a page: from a key on the next page to one on the page before.
func TestListWhileAHoldMoves(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	grant, err := c.Grant(guard(t), 600)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for i := range 999 {
		keys = append(keys, fmt.Sprintf("n%04d/%x", i, grant.ID))
	}
	contenders(t, c, grant.ID, append(keys, "x/2", "x/3000000000000000")...) // x/2 ends the first page, and is no contender
	names, moved := map[string]bool{}, false
	for name, err := range openURL(t, "etcd://%s", s.Addr).List(guard(t), "") {
		if err != nil {
			t.Fatal(err)
		}
		if !moved {
			moved = true
			contenders(t, c, grant.ID, "x/1000000000000000")
			if _, err := c.Delete(guard(t), "x/3000000000000000"); err != nil {
				t.Fatal(err)
			}
		}
		names[name] = true
	}
	if len(names) != 1000 || !names["x"] {
		t.Errorf("List: got %d names, x is one: %t; want 1000 and x, which was held all the time", len(names), names["x"])
	}
}

func TestListOfSilentServer(t *testing.T) {
	s := testenv.Etcd(t)
	drivertest.ListOfSilentServer(t, openURL(t, "etcd://%s", s.Addr), s.Freeze, s.Thaw)
}

// TestListByABeginningOfALease: the key of a name begins with the prefix, and the
// name does not.
func TestListByABeginningOfALease(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	for _, parameter := range []string{"", "?names=flat"} {
		d := openURL(t, "etcd://%s%s", s.Addr, parameter)
		l := acquire(t, d, request("a"))
		prefix := keys(t, c, "a/")[0][:3]
		names, err := drivertest.Listed(t, guard(t), d, prefix)
		if err != nil || len(names) > 0 {
			t.Errorf("List of %q: got %q, %v, want none", prefix, names, err)
		}
		release(t, l)
	}
}
