package etcd_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestKeysOfALock(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	for _, test := range []struct{ query, name, dir string }{
		{"", "orders/42", "orders/42/"},
		{"/app/", "orders/42", "app/orders/42/"},
		{"/app", "orders", "apporders/"},
		{"/?names=flat", "orders/4%2", "orders%2F4%252/"},
		{"//?names=flat", "ü/", "/ü%2F/"},
	} {
		t.Run(test.query, func(t *testing.T) {
			d := openURL(t, "etcd://%s%s", s.Addr, test.query)
			r := request(test.name)
			r.Note = "a note"
			l := acquire(t, d, r)
			answer, err := c.Get(t.Context(), test.dir, clientv3.WithPrefix())
			if err != nil || len(answer.Kvs) != 1 {
				t.Fatalf("keys below %q: got %v, %v, want one key", test.dir, answer, err)
			}
			kv := answer.Kvs[0]
			last := strings.TrimPrefix(string(kv.Key), test.dir)
			if want := strconv.FormatUint(uint64(kv.Lease), 16); !regexp.MustCompile("^" + want + "-[0-9a-f]+$").MatchString(last) {
				t.Errorf("key: got %q, want %s and a number", kv.Key, test.dir+want)
			}
			var value map[string]string
			if err := json.Unmarshal(kv.Value, &value); err != nil {
				t.Fatal(err)
			}
			if value["owner"] != r.Owner || value["note"] != "a note" || value["host"] == "" || value["time"] == "" {
				t.Errorf("value: got %v, want owner, host, time and note", value)
			}
			if got, want := token(l), uint64(kv.CreateRevision); got != want {
				t.Errorf("token: got %d, want the revision of the transaction, %d", got, want)
			}
			release(t, l)
			if got := keys(t, c, test.dir); len(got) > 0 {
				t.Errorf("keys after the release: got %q", got)
			}
		})
	}
}

func TestNamesBelowOneAnotherAreDistinct(t *testing.T) {
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s", s.Addr)
	var below []driver.Lease
	for i := range 10 { // more than one request reads
		below = append(below, acquire(t, d, request("orders/"+strconv.Itoa(i))))
	}
	l := acquire(t, d, noWait("orders"))
	if _, err := d.Acquire(t.Context(), noWait("orders")); err != driver.ErrLocked {
		t.Errorf("a second TryLock: got %v, want %v", err, driver.ErrLocked)
	}
	for i := range 10 {
		below = append(below, acquire(t, d, request("orders/x"+strconv.Itoa(i))))
	}
	w := wait(t, d, request("orders"))
	for i := range 10 {
		below = append(below, acquire(t, d, request("orders/y"+strconv.Itoa(i))))
	}
	release(t, l)
	second := w.Granted(t)
	if token(second) <= token(below[len(below)-1]) || token(second) <= token(l) {
		t.Errorf("tokens: got %d after %d", token(second), token(l))
	}
	release(t, second)
	for _, l := range below {
		release(t, l)
	}
}

func TestRoundTrips(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	release(t, acquire(t, d, request("warm")))
	release(t, acquire(t, d, fixed(request("warm"), 30e9)))
	for range 2 * 8 { // two pages
		acquire(t, d, in(driver.Read, request("read")))
	}
	for _, test := range []struct {
		name string
		r    *driver.Request
	}{
		{"lock", request("a")},
		{"try", noWait("a")},
		{"fixed", fixed(request("a"), 30e9)},
		{"read", in(driver.Read, request("a"))},
		{"try to read", in(driver.Read, noWait("a"))},
		{"write", in(driver.Write, request("a"))},
		{"read while others read", in(driver.Read, request("read"))},
		{"try to read while others read", in(driver.Read, noWait("read"))},
	} {
		before, rpcs := revision(t, c), s.Requests()
		l := acquire(t, d, test.r)
		between := revision(t, c)
		release(t, l)
		after := revision(t, c)
		if between-before != 1 || after-between != 1 {
			t.Errorf("%s: changes by acquire and release: got %d and %d, want 1 and 1", test.name, between-before, after-between)
		}
		got := s.Requests()
		for method, n := range rpcs {
			got[method] -= n
		}
		want := map[string]int64{"Txn": 1, "DeleteRange": 1, "Range": 2}
		if test.r.Fixed {
			want["LeaseKeepAlive"] = 1
		}
		for _, method := range []string{"Txn", "DeleteRange", "Range", "LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "Watch", "Put"} {
			if got[method] != want[method] {
				t.Errorf("%s: requests %s: got %d, want %d", test.name, method, got[method], want[method])
			}
		}
	}
}

func TestRefusedTryIsOneRequest(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	l := acquire(t, d, request("a"))
	before := revision(t, c)
	if _, err := d.Acquire(t.Context(), noWait("a")); err != driver.ErrLocked {
		t.Errorf("got %v, want %v", err, driver.ErrLocked)
	}
	if got := revision(t, c); got != before {
		t.Errorf("changes by a refused TryLock: got %d, want 0", got-before)
	}
	release(t, l)
}

func TestQueueIsInOrderOfArrival(t *testing.T) {
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	first := acquire(t, a, request("a"))
	var waiters []*drivertest.Waiter
	for i := range 6 {
		d := a
		if i%2 == 1 {
			d = b
		}
		waiters = append(waiters, wait(t, d, request("a")))
	}
	tokens := []uint64{token(first)}
	release(t, first)
	for i, w := range waiters {
		l := w.Granted(t)
		for j, later := range waiters[i+1:] {
			if !later.Waits() {
				t.Errorf("waiter %d was granted while %d holds", i+1+j, i)
			}
		}
		tokens = append(tokens, token(l))
		release(t, l)
	}
	if !slices.IsSorted(tokens) || len(slices.Compact(slices.Clone(tokens))) != len(tokens) {
		t.Errorf("tokens: got %v, want them to rise", tokens)
	}
}
