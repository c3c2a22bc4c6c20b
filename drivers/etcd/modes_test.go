package etcd_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestKeysOfModes(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	for mode, want := range map[driver.Mode]string{driver.Read: `^a/\+read-[0-9a-f]+-[0-9a-f]+$`, driver.Write: `^a/write-[0-9a-f]+-[0-9a-f]+$`} {
		l := acquire(t, d, in(mode, request("a")))
		if got := keys(t, c, "a/"); len(got) != 1 || !regexp.MustCompile(want).MatchString(got[0]) {
			t.Errorf("keys of a %v: got %q, want a key like %s", mode, got, want)
		}
		release(t, l)
	}
	if got := d.Info().ReadWrite; got != (driver.Support{Offered: true, Order: driver.FIFOByClient, Fencing: driver.Durable}) {
		t.Errorf("Info: got %+v", got)
	}
	below := acquire(t, d, in(driver.Write, request("b/read"))) // keys of RWMutex have the same beginning
	release(t, acquire(t, d, in(driver.Write, request("b"))))
	release(t, acquire(t, d, in(driver.Read, noWait("b"))))
	release(t, below)
}

// waitersOf opens clients. It returns a function that begins n waiting calls in
// a mode, by one client after another.
func waitersOf(t *testing.T, s *testenv.EtcdServer, clients int) func(n int, mode driver.Mode) []*drivertest.Waiter {
	drivers := make([]*etcd.Driver, clients)
	for i := range drivers {
		drivers[i] = openURL(t, "etcd://%s?order=fifo", s.Addr) // so that few waiters of a client read the queue at a time
		release(t, acquire(t, drivers[i], request(fmt.Sprint("warm", i))))
	}
	return func(n int, mode driver.Mode) []*drivertest.Waiter {
		waiters := make([]*drivertest.Waiter, n)
		drivertest.Crowd(clients, 1, func(i int) {
			for ; i < n; i += clients {
				waiters[i] = wait(t, drivers[i%clients], in(mode, request("a")))
			}
		})
		return waiters
	}
}

// TestCrowdOfReads has many Reads of 25 clients wait for a writer, and a second
// writer wait for them. All Reads hold the name together. None sends more
// requests than are necessary to wait and to be granted the name.
func TestCrowdOfReads(t *testing.T) {
	t.Parallel()
	const clients = 25
	n := testenv.Briefly(250, 1000)
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	begin := waitersOf(t, s, clients)
	d := openURL(t, "etcd://%s", s.Addr)
	write := acquire(t, d, in(driver.Write, request("a")))
	before := s.Requests()
	start := time.Now()
	readers := begin(n, driver.Read)
	last := wait(t, d, in(driver.Write, request("a")))
	newcomers := begin(clients, driver.Read)
	release(t, write)
	var leases []driver.Lease
	highest := uint64(0)
	for _, w := range readers {
		l := w.Granted(t)
		if token(l) <= token(write) {
			t.Fatalf("token of a Read: got %d after %d", token(l), token(write))
		}
		leases, highest = append(leases, l), max(highest, token(l))
	}
	for _, w := range append(newcomers, last) {
		if !w.Waits() {
			t.Fatal("a client that came after the readers also holds the name")
		}
	}
	if got := len(keys(t, c, "a/")); got != n+1+clients {
		t.Errorf("keys: got %d, want %d", got, n+1+clients)
	}
	drivertest.Crowd(clients, 1, func(i int) {
		for ; i < n; i += clients {
			release(t, leases[n-1-i])
		}
	})
	write = last.Granted(t)
	if token(write) <= highest {
		t.Errorf("token of a Write: got %d after %d", token(write), highest)
	}
	for _, w := range newcomers {
		if !w.Waits() {
			t.Fatal("a client that came after the writer also holds the name")
		}
	}
	release(t, write)
	for _, w := range newcomers {
		release(t, w.Granted(t))
	}
	after := s.Requests()
	backstops := int64(time.Since(start)/(3*time.Second)) * int64(n)
	most := int64(5*n+6*clients) + backstops
	// At most a put, a read when the watch has begun, a read at the grant, and
	// a deletion. The writer reads the queue when the nearest Read is gone.
	if got := after["Txn"] - before["Txn"] + after["DeleteRange"] - before["DeleteRange"]; got > most {
		t.Errorf("requests: got %d, want at most %d", got, most)
	}
	t.Logf("%d Reads: %d transactions, %d deletions, %v", n, after["Txn"]-before["Txn"], after["DeleteRange"]-before["DeleteRange"], time.Since(start))
}

// TestCanceledWriterHoldsNobodyUp has readers wait behind a waiting writer
// while another reader holds the lock.
func TestCanceledWriterHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	begin := waitersOf(t, s, 3)
	d := openURL(t, "etcd://%s", s.Addr)
	for _, mode := range []driver.Mode{driver.Write, driver.Exclusive} {
		read := acquire(t, d, in(driver.Read, request("a")))
		first, second := wait(t, d, in(mode, request("a"))), wait(t, d, in(mode, request("a")))
		readers := begin(9, driver.Read)
		for _, w := range []*drivertest.Waiter{second, first} { // the nearest goes first
			for _, r := range readers {
				if !r.Waits() {
					t.Fatal("a Read has overtaken a waiting writer")
				}
			}
			w.Cancel()
			if _, err := w.End(t); err == nil {
				t.Fatal("granted the name together with a reader")
			}
		}
		for _, r := range readers {
			release(t, r.Granted(t))
		}
		release(t, read)
	}
}

// TestInspectAndForceUnlockOfReads ends more holds than fit into one request.
func TestInspectAndForceUnlockOfReads(t *testing.T) {
	t.Parallel()
	const n = 150
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	var requests []*driver.Request
	for i := range n {
		r := in(driver.Read, request("a"))
		if i%50 == 1 {
			r = fixed(r, 30*time.Second)
		}
		requests = append(requests, r)
		acquire(t, a, r)
	}
	r := in(driver.Write, request("a"))
	r.Owner = "writer"
	w := wait(t, b, r)
	newcomer := wait(t, a, in(driver.Read, request("a")))
	got, err := b.Inspect(t.Context(), "a")
	if err != nil || !got.Held || got.Mode != driver.Read || got.Holders != n || got.Waiters != 2 || got.Hold != requests[0].Hold {
		t.Errorf("Inspect: got %+v, %v, want %d readers, the first of them %s", got, err, n, requests[0].Hold)
	}
	if want := []string{"writer", "owner of a"}; !slices.Equal(got.Queue, want) {
		t.Errorf("queue: got %q, want %q", got.Queue, want)
	}
	if err := b.ForceUnlock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	l := w.Granted(t)
	for _, r := range requests {
		if err := lostBy(t, r); !errors.Is(err, driver.ErrRemoved) {
			t.Errorf("a reader: got %v, want %v", err, driver.ErrRemoved)
		}
	}
	if got, err := a.Inspect(t.Context(), "a"); err != nil || got.Mode != driver.Write || got.Holders != 1 || got.Waiters != 1 || got.Owner != "writer" {
		t.Errorf("Inspect: got %+v, %v, want one writer", got, err)
	}
	if !newcomer.Waits() {
		t.Error("a Read holds the name together with a Write")
	}
	release(t, l)
	release(t, newcomer.Granted(t))
	wantErr(t, "of a free name", b.ForceUnlock(t.Context(), "a"), driver.ErrNotHeld)
}

func TestSealIsForAllModes(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	read := acquire(t, a, in(driver.Read, request("a")))
	wantErr(t, "Seal of a Read", a.Seal(t.Context(), read), errors.ErrUnsupported)
	sealer := wait(t, a, request("a"))
	waiters := []*drivertest.Waiter{wait(t, b, in(driver.Read, request("a"))), wait(t, b, in(driver.Write, request("a")))}
	release(t, read)
	seal(t, a, sealer.Granted(t))
	for _, w := range waiters {
		_, err := w.End(t)
		wantErr(t, "a waiter", err, driver.ErrSealed)
	}
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		for _, r := range []*driver.Request{request("a"), noWait("a"), fixed(request("a"), 5*time.Second)} {
			_, err := b.Acquire(t.Context(), in(mode, r))
			wantErr(t, "a newcomer", err, driver.ErrSealed)
		}
	}
	wantErr(t, "ForceUnlock", b.ForceUnlock(t.Context(), "a"), driver.ErrSealed)
	if got, err := b.Inspect(t.Context(), "a"); err != nil || got.Holders != 1 {
		t.Errorf("Inspect: got %+v, %v, want one holder", got, err)
	}
}

// TestReadsOnALeaseThatEnds revokes a lease with a Read that holds the name and
// a Read that waits for it.
func TestReadsOnALeaseThatEnds(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	a, b := openURL(t, "etcd://%s", s.Addr), openURL(t, "etcd://%s", s.Addr)
	r := in(driver.Read, request("a"))
	acquire(t, a, r)
	writer := wait(t, b, in(driver.Write, request("a")))
	waiter := wait(t, a, in(driver.Read, request("a")))
	own := keys(t, c, "a/+read-")
	revoke(t, c, leaseOf(t, c, own[0]))
	wantErr(t, "the reader", lostBy(t, r), driver.ErrSessionEnded)
	write := writer.Granted(t)
	testenv.Eventually(t, func() bool {
		now := keys(t, c, "a/+read-")
		return len(now) == 1 && !slices.Contains(own, now[0])
	}, "the waiter has a new key")
	if !waiter.Waits() {
		t.Error("a Read holds the name together with a Write")
	}
	release(t, write)
	release(t, waiter.Granted(t))
}
