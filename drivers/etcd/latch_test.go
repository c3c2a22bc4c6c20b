package etcd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// setLatch sets a latch that is not there.
func setLatch(tb testing.TB, d *etcd.Driver, name, id string, n int) {
	tb.Helper()
	if set, err := d.SetLatch(guard(tb), name, id, n); err != nil || !set {
		tb.Errorf("SetLatch of %q: got %v, %v, want true", name, set, err)
	}
}

func countDown(tb testing.TB, d *etcd.Driver, name, id string) {
	tb.Helper()
	if err := d.CountDown(guard(tb), name, id); err != nil {
		tb.Error(err)
	}
}

func wantLeft(tb testing.TB, d *etcd.Driver, name string, want int) {
	tb.Helper()
	if got, err := d.Latch(guard(tb), name); err != nil || got != want {
		tb.Errorf("count of %q: got %d, %v, want %d", name, got, err, want)
	}
}

// watchLatch watches a latch and returns the number of notifications since the
// watch began.
func watchLatch(tb testing.TB, d *etcd.Driver, name string) *atomic.Int64 {
	tb.Helper()
	calls := new(atomic.Int64)
	stop, err := d.WatchLatch(name, func() { calls.Add(1) })
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(stop)
	testenv.Eventually(tb, func() bool { return calls.Swap(0) > 0 }, "the watch begins")
	return calls
}

// TestKeysOfALatch checks that the keys conflict with no other keys, and that
// the ids of changes end by themselves.
func TestKeysOfALatch(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s/app/", s.Addr)
	const key = "app/\x00latch\x00orders/42"
	setLatch(t, d, "orders/42", "set", 3)
	countDown(t, d, "orders/42", "down")
	countDown(t, d, "orders/42", "down")
	answer, err := c.Get(t.Context(), key)
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("key %q: got %v, %v, want one key", key, answer, err)
	}
	if kv := answer.Kvs[0]; string(kv.Value) != "3" || kv.Version != 2 || kv.Lease != 0 {
		t.Errorf("key %q: got %v, want 3, put again once, without a lease", key, kv)
	}
	if got := keys(t, c, "app/orders"); len(got) > 0 {
		t.Errorf("keys below the name: got %q, want none", got)
	}
	mutex := newMutex(t, c, "app/orders")
	if err := mutex.Lock(guard(t)); err != nil {
		t.Errorf("Mutex: %v", err)
	}
	release(t, acquire(t, d, request("orders/42")))
	for name, err := range d.List(t.Context(), "") {
		if name != "orders" || err != nil {
			t.Errorf("List: got %q, %v", name, err)
		}
	}

	countDown(t, d, "orders/42", "second")
	countDown(t, d, "orders/42", "last")
	if got := keys(t, c, key); len(got) > 0 {
		t.Errorf("keys of the latch at 0: got %q, want none", got)
	}
	if err := d.Close(guard(t)); err != nil {
		t.Fatal(err)
	}
	answer, err = c.Get(t.Context(), "app/\x00change\x00orders/42\x00", clientv3.WithPrefix())
	if err != nil || len(answer.Kvs) != 4 {
		t.Fatalf("ids of changes: got %v, %v, want 4", answer, err)
	}
	for _, kv := range answer.Kvs {
		left, err := c.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
		if err != nil || left.GrantedTTL != 7200 {
			t.Errorf("lease of %q: got %v, %v, want a lease of two hours", kv.Key, left, err)
		}
	}
	if set, err := openURL(t, "etcd://%s/app/", s.Addr).SetLatch(guard(t), "orders/42", "set", 3); err != nil || !set {
		t.Errorf("repeat of the first change after Close: got %v, %v, want true", set, err)
	}
	if got := keys(t, c, key); len(got) > 0 {
		t.Errorf("keys of the latch after a repeat: got %q, want none", got)
	}
}

// TestLatchRequests has many clients count down at the same time. No client
// needs to repeat a request because of another client.
func TestLatchRequests(t *testing.T) {
	const clients, each = 4, 25
	s := testenv.Etcd(t)
	var drivers []*etcd.Driver
	for i := range clients {
		d := openURL(t, "etcd://%s", s.Addr)
		setLatch(t, d, fmt.Sprint("warm", i), fmt.Sprint("warm", i), 1) // the lease is there
		drivers = append(drivers, d)
	}
	before := s.Requests()
	setLatch(t, drivers[0], "x", "set", clients*each+1)
	drivertest.Crowd(clients*each, 1, func(i int) { countDown(t, drivers[i%clients], "x", fmt.Sprint("down", i)) })
	wantLeft(t, drivers[0], "x", 1)
	countDown(t, drivers[0], "x", "last")
	wantLeft(t, drivers[0], "x", 0)
	got := map[string]int64{}
	for method, n := range s.Requests() {
		if method == "Txn" || method == "Range" || method == "LeaseGrant" || method == "Watch" {
			got[method] = n - before[method]
		}
	}
	// A transaction counts the ranges in it: each countdown but the first,
	// which finds no latch at first, reads twice.
	if got["Txn"] != 1+2*(clients*each+1) || got["LeaseGrant"] != 0 || got["Watch"] != 0 {
		t.Errorf("requests: got %v, want %d transactions and no lease", got, 1+2*(clients*each+1))
	}
}

// TestLatchLastTwoAtOnce has a countdown read that two are left, and lets
// another countdown come in between.
func TestLatchLastTwoAtOnce(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	setLatch(t, a, "warm", "warm", 1) // the lease is there
	setLatch(t, b, "x", "set", 2)
	before := s.Requests()["Txn"]
	held := link.HoldReply("first")
	counted := make(chan error, 1)
	go func() { counted <- a.CountDown(guard(t), "x", "first") }() // ends after 3 s at the latest
	<-held
	testenv.Eventually(t, func() bool { return s.Requests()["Txn"] > before }, "the server has answered")
	countDown(t, b, "x", "second")
	wantLeft(t, b, "x", 1)
	link.Heal()
	if err := <-counted; err != nil {
		t.Errorf("CountDown: %v", err)
	}
	wantLeft(t, b, "x", 0)
}

// TestLatchWithoutItsLease has the server lose the lease of the ids.
func TestLatchWithoutItsLease(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	setLatch(t, d, "x", "set", 2)
	lost := leasesOfChanges(t, c)
	if len(lost) != 1 {
		t.Fatalf("leases: got %v, want one lease", lost)
	}
	for lease := range lost {
		revoke(t, c, lease)
	}
	drivertest.Crowd(8, 1, func(i int) { countDown(t, d, "y", fmt.Sprint("none", i)) })
	countDown(t, d, "x", "down")
	wantLeft(t, d, "x", 1)
	if got := leasesOfChanges(t, c); len(got) != 1 || reflect.DeepEqual(got, lost) {
		t.Errorf("leases: got %v, want one lease other than %v", got, lost)
	}
}

// leasesOfChanges returns the leases to which ids of changes are attached.
func leasesOfChanges(tb testing.TB, c *clientv3.Client) map[clientv3.LeaseID]bool {
	tb.Helper()
	answer, err := c.Get(guard(tb), "\x00change\x00", clientv3.WithPrefix())
	if err != nil {
		tb.Fatal(err)
	}
	leases := map[clientv3.LeaseID]bool{}
	for _, kv := range answer.Kvs {
		leases[clientv3.LeaseID(kv.Lease)] = true
	}
	return leases
}

// TestLatchWatchHearsOfTheEnd checks that a watch reports only the end, so that
// a countdown causes no traffic for the waiters.
func TestLatchWatchHearsOfTheEnd(t *testing.T) {
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s", s.Addr)
	calls := watchLatch(t, d, "x")
	for round := range 2 {
		setLatch(t, d, "x", fmt.Sprint("set", round), 20)
		for i := range 20 {
			countDown(t, d, "x", fmt.Sprint("down", round, "-", i))
		}
		testenv.Eventually(t, func() bool { return calls.Load() > int64(round) }, "the watch reports the end")
	}
	if got := calls.Load(); got != 2 {
		t.Errorf("calls for two ends: got %d, want 2", got)
	}
}

// TestLatchEndThatNoWatchTells cuts the watcher off and has the server forget
// the events in the meantime.
func TestLatchEndThatNoWatchTells(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", addr)
	calls := watchLatch(t, b, "x")
	for round := range 2 {
		setLatch(t, a, "x", fmt.Sprint("set", round), 1)
		link.Cut()
		countDown(t, a, "x", fmt.Sprint("down", round))
		if _, err := c.Put(t.Context(), "other", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Compact(t.Context(), revision(t, c)); err != nil {
			t.Fatal(err)
		}
		before := calls.Load()
		link.Heal()
		testenv.Eventually(t, func() bool { return calls.Load() > before }, "the watcher sends another request")
	}
}

// TestLatchAnswersLost loses the answers to changes of a latch and repeats the
// changes after the next latch was created.
func TestLatchAnswersLost(t *testing.T) {
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	a, b := openURL(t, "etcd://%s", addr), openURL(t, "etcd://%s", s.Addr)
	setLatch(t, a, "warm", "warm", 1) // the lease is there
	for i, change := range []func() error{
		func() error { _, err := a.SetLatch(guard(t), "x", "change0", 2); return err },
		func() error { return a.CountDown(guard(t), "x", "change1") },
		func() error { return a.DeleteLatch(guard(t), "x", "change2") },
	} {
		before := []int{0, 3, 3}[i]
		if before > 0 {
			setLatch(t, b, "x", fmt.Sprint("before", i), before)
		}
		held := link.HoldReply("true") // the value of the id: the request does something
		answered := make(chan error, 1)
		go func() { answered <- change() }() // ends after 3 s at the latest
		<-held
		testenv.Eventually(t, func() bool { left, err := b.Latch(guard(t), "x"); return err == nil && left != before }, "the change is carried out")
		link.Cut()
		link.Heal()
		if err := <-answered; !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("unanswered change %d: got %v, want %v", i, err, driver.ErrUnknown)
		}
		if err := b.DeleteLatch(guard(t), "x", fmt.Sprint("delete", i)); err != nil {
			t.Fatal(err)
		}
		setLatch(t, b, "x", fmt.Sprint("after", i), 9)
		testenv.Eventually(t, func() bool { return change() == nil }, "the repeat is answered")
		wantLeft(t, b, "x", 9)
		if err := b.DeleteLatch(guard(t), "x", fmt.Sprint("end", i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLatchOfAnotherKind(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	for range 2 { // the second put makes the version equal the count, but the key exists
		if _, err := c.Put(t.Context(), "\x00latch\x00x", "1"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.Latch(t.Context(), "x")
	for what, err := range map[string]error{"Latch": err, "CountDown": d.CountDown(t.Context(), "x", "id")} {
		if err == nil || errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s of a key that is not a latch: got %v, want a final error", what, err)
		}
	}
}

func TestLatchRights(t *testing.T) {
	s := testenv.Etcd(t)
	password := testenv.Password()
	secure(t, s, password)
	d := openURL(t, "etcd://app:%s@%s/locks/", password, s.Addr)
	watchLatch(t, d, "x")
	setLatch(t, d, "x", "set", 2)
	countDown(t, d, "x", "down")
	wantLeft(t, d, "x", 1)
	elsewhere := openURL(t, "etcd://app:%s@%s/other/", password, s.Addr)
	wantErr(t, "CountDown without permission", elsewhere.CountDown(t.Context(), "x", "other"), fs.ErrPermission)
	_, err := elsewhere.Latch(t.Context(), "x")
	wantErr(t, "Latch without permission", err, fs.ErrPermission)
}
