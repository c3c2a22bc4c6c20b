package redlock

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// roles are what other processes of the tests do.
var roles = map[string]func(){"redsync": incrementByRedsync, "dsync": incrementByDsync, "holder": holdForStop}

const (
	nodesVariable = "REDLOCK_TEST_NODES"
	interopName   = "interop {lock}/ä"
)

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func incrementByRedsync() {
	rs, stop, err := newRedsync(strings.Split(os.Getenv(nodesVariable), ","))
	exitOn(err)
	defer stop()
	testenv.Count(func() (func() error, error) {
		m := rs.NewMutex(interopName, redsync.WithTries(1_000_000), redsync.WithExpiry(20*time.Second),
			// Those that ask again in step share the votes out among them again.
			redsync.WithRetryDelayFunc(func(int) time.Duration { return time.Millisecond + rand.N(8*time.Millisecond) }))
		return func() error {
			_, err := m.Unlock()
			return err
		}, m.Lock()
	})
}

func incrementByDsync() {
	c, err := dsync.Open(context.Background(), "redlock://"+os.Getenv(nodesVariable)+settled, &dsync.Options{TTL: 20 * time.Second})
	exitOn(err)
	testenv.Count(func() (func() error, error) {
		l, err := c.Lock(context.Background(), interopName)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Unlock(context.Background()) }, nil
	})
	exitOn(c.Close(context.Background()))
}

// TestInteropRedsync lets processes of both libraries add to one number under one lock.
func TestInteropRedsync(t *testing.T) {
	nodes := startNodes(t, 5)
	env := nodesVariable + "=" + strings.Join(addresses(nodes), ",")
	c := testenv.NewCounter(t)
	c.Spawn(4, "redsync", 500, 1, env)
	c.Spawn(4, "dsync", 500, 1, env)
	c.Run()
	nodes.awaitClear(t)
}

// TestInteropExclusion lets each library hold the lock while the other one asks.
func TestInteropExclusion(t *testing.T) {
	nodes := startNodes(t, 5)
	c, rs := dsyncOn(t, nodes), redsyncOn(t, nodes)
	l, err := c.Lock(t.Context(), interopName)
	if err != nil {
		t.Fatal(err)
	}
	m := rs.NewMutex(interopName)
	if err := m.TryLock(); err == nil {
		t.Error("redsync was granted a lock that dsync holds")
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes.awaitClear(t)
	if err := m.Lock(); err != nil {
		t.Fatalf("redsync after the unlock: %v", err)
	}
	if _, err := c.TryLock(t.Context(), interopName); !isRefusal(err) {
		t.Errorf("dsync while redsync holds the lock: got %v, want ErrLocked", err)
	}
	if ok, err := m.Extend(); !ok || err != nil {
		t.Errorf("Extend of redsync: got %t, %v", ok, err)
	}
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Errorf("Unlock of redsync: got %t, %v", ok, err)
	}
	if l, err = c.Lock(t.Context(), interopName); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// holdForStop takes a lock, says when it has it, and tells whether it still believes so whenever it is asked.
func holdForStop() {
	c, err := dsync.Open(context.Background(), "redlock://"+os.Getenv(nodesVariable)+settled, &dsync.Options{TTL: time.Second})
	exitOn(err)
	l, err := c.Lock(context.Background(), "stopped")
	exitOn(err)
	fmt.Println("held")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(l.Err() == nil)
	}
}

// TestFrozenHolder stops a process that holds a lock for longer than its TTL: others get the lock, and it knows when it goes on.
func TestFrozenHolder(t *testing.T) {
	nodes := startNodes(t, 5)
	p := testenv.Spawn(t, "holder", nodesVariable+"="+strings.Join(addresses(nodes), ","))
	if got := p.Line(); got != "held" {
		t.Fatalf("holder: %s", got)
	}
	p.Stop()
	c := dsyncOn(t, nodes)
	l, err := c.Lock(t.Context(), "stopped")
	if err != nil {
		t.Fatal(err)
	}
	p.Send("?")
	p.Cont()
	if got := p.Line(); got != "false" {
		t.Errorf("a holder that was frozen for longer than its TTL believes that it holds the lock: %s", got)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("the holder that was frozen took the lock from the next one: %v", err)
	}
}
