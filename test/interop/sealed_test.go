package interop

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	moving "github.com/go-dsync/dsync/driver/move" // the name move is a type of this package
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

// TestSealed makes Java use names that a migration has sealed, and a migration
// seal names that Java uses.
func TestSealed(t *testing.T) {
	server := testenv.Redis(t)
	for _, version := range agent.Versions(agent.New, agent.Middle, agent.Old) {
		t.Run("redisson "+version, func(t *testing.T) {
			t.Parallel()
			b := serverBed(server, version).withJava(t)
			t.Run("no Java client is granted a sealed name", b.nobodyBesideASeal)
			t.Run("java waits for a sealed name until the name is free", b.waitsForASeal)
			t.Run("a name that java holds is not sealed", b.sealsNothingOfJava)
			t.Run("a name that java holds alongside a lock is not sealed", b.sealsNothingBesideJava)
		})
	}
}

// kinds are the Java locks that use the key of a name.
var kinds = []string{"read", "write", "plain", "fair", "fenced"}

// request returns a request for a name that does not wait.
func (b *bed) request(name string, mode driver.Mode) *driver.Request {
	return &driver.Request{Name: name, Hold: fresh("hold"), Mode: mode, TTL: watchdog, NoWait: true, Events: silent{}}
}

// sealed returns a sealed name.
func (b *bed) sealed(t *testing.T, d driver.Driver, what string) string {
	t.Helper()
	name := fresh(what)
	l, err := d.Acquire(t.Context(), b.request(name, driver.Exclusive))
	if err == nil {
		err = d.(moving.Sealer).Seal(t.Context(), l)
	}
	if err != nil {
		t.Fatalf("Seal: %v", err)
	}
	return name
}

// unseal frees a name.
func unseal(t *testing.T, d driver.Driver, name string) {
	t.Helper()
	u := d.(moving.Unsealer)
	if err := errors.Join(u.Loosen(t.Context(), name, "id", 0), u.Unseal(t.Context(), name, "id")); err != nil {
		t.Errorf("Loosen and Unseal: %v", err)
	}
}

func (b *bed) nobodyBesideASeal(t *testing.T) {
	d := drivertest.Open(t, b.url(""))
	for _, kind := range kinds {
		name := b.sealed(t, d, "sealed-"+kind)
		before := b.fields(name)
		j := b.redisson.thread(name, kind, name)
		j.begin("tryLock").equals(t, "false")
		c := j.begin("unlock")
		if c.wait(t); c.err == nil && kind != "fair" { // any Redisson client can unlock a fair lock
			t.Errorf("unlock of a sealed name as a %s lock: got no error", kind)
		}
		b.wantFields(t, name, before)
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Read, driver.Write} {
			if _, err := d.Acquire(t.Context(), b.request(name, mode)); !errors.Is(err, driver.ErrSealed) {
				t.Errorf("Acquire in mode %v of a sealed name that java requested: got %v, want ErrSealed", mode, err)
			}
		}
		unseal(t, d, name)
		j.begin("tryLock").equals(t, "true")
		j.do(t, "unlock")
	}
}

// waitsForASeal checks that Java sleeps until it is notified, or for 100 years.
func (b *bed) waitsForASeal(t *testing.T) {
	d := drivertest.Open(t, b.url(""))
	for kind, waiters := range map[string]int{"read": 3, "write": 1, "plain": 1} {
		name := b.sealed(t, d, "awaited-"+kind)
		channel := readWriteChannel(name)
		if kind == "plain" {
			channel = channelOf(name)
		}
		var threads []*thread
		var calls []*call
		for i := range waiters {
			j := b.redisson.thread(fmt.Sprint(name, i), kind, name)
			threads, calls = append(threads, j), append(calls, j.acquire(0))
		}
		b.subscribed(t, channel, 1)
		time.Sleep(50 * time.Millisecond) // a waiter sends another request once it has subscribed
		status, err := d.(driver.Inspector).Inspect(t.Context(), name)
		if err != nil || !status.Held || status.Owner != "seal" || status.Mode != driver.Exclusive || status.Waiters < 1 {
			t.Errorf("Inspect of a sealed name that java waits for: got %+v, %v, want a seal and a waiter", status, err)
		}
		for _, c := range calls {
			if c.ended() {
				t.Fatalf("a %s lock was granted despite a seal: %v", kind, c.err)
			}
		}
		unseal(t, d, name)
		var let sync.WaitGroup
		for i, c := range calls {
			let.Go(func() { // ends when the call ends
				if c.wait(t); c.err != nil {
					t.Errorf("lock of a name that was sealed: %v", c.err)
					return
				}
				c = threads[i].begin("unlock")
				if c.wait(t); c.err != nil {
					t.Errorf("unlock of a name that was sealed: %v", c.err)
				}
			})
		}
		let.Wait()
		b.gone(t, name)
	}
}

func (b *bed) sealsNothingOfJava(t *testing.T) {
	d := drivertest.Open(t, b.url(""))
	for _, kind := range kinds {
		name := fresh("javas-" + kind)
		j := b.redisson.thread(name, kind, name)
		j.acquire(0).ok(t)
		if _, err := d.Acquire(t.Context(), b.request(name, driver.Exclusive)); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("Acquire of a name that java holds as a %s lock: got %v, want ErrLocked", kind, err)
		}
		j.do(t, "unlock")
		l, err := d.Acquire(t.Context(), b.request(name, driver.Exclusive))
		if err == nil {
			err = d.(moving.Sealer).Seal(t.Context(), l)
		}
		if err != nil {
			t.Errorf("Seal when java has released the name: %v", err)
		}
	}
}

// sealsNothingBesideJava covers a Java reader or writer that is granted a
// locked name, as happens when Java itself holds a plain lock. Java's hold
// stays and Go's hold ends.
func (b *bed) sealsNothingBesideJava(t *testing.T) {
	d := drivertest.Open(t, b.url(""))
	for _, kind := range []string{"read", "write"} {
		name := fresh("beside-" + kind)
		l, err := d.Acquire(t.Context(), b.request(name, driver.Exclusive))
		if err != nil {
			t.Fatal(err)
		}
		j := b.redisson.thread(name, kind, name)
		j.begin("tryLock").equals(t, "true")
		if err := d.(moving.Sealer).Seal(t.Context(), l); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Seal alongside a java %s lock: got %v, want ErrNotHeld", kind, err)
		}
		owner := j.owner(t)
		if kind == "write" {
			owner += ":write"
		}
		b.wantFields(t, name, map[string]string{"mode": kind, owner: "1"})
		if _, sealed, err := d.(moving.Sealer).Sealed(t.Context(), name); sealed || err != nil {
			t.Errorf("Sealed: got %t, %v, want false", sealed, err)
		}
		j.do(t, "unlock")
		b.gone(t, name)
	}
}
