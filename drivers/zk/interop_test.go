package zk_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestLockOfGoZookeeper(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "zk://%s", s.Addr)
	other := gozk.NewLock(c, "/orders/42", gozk.WorldACL(gozk.PermAll))

	l := acquire(t, d, request("orders/42"))
	theirs := make(chan error, 1)
	go func() { theirs <- other.Lock() }() // ends when we release
	testenv.Eventually(t, func() bool { return len(children(t, c, "/orders/42")) == 2 }, "they wait behind us")
	ours := wait(t, d, request("orders/42"))
	release(t, l)
	if err := <-theirs; err != nil {
		t.Fatal(err)
	}
	if !ours.Waits() {
		t.Error("we were granted the lock before clients that requested it first")
	}
	if _, err := d.Acquire(t.Context(), noWait("orders/42")); err != driver.ErrLocked {
		t.Errorf("our TryLock while they hold the lock: got %v, want %v", err, driver.ErrLocked)
	}
	if status, err := d.Inspect(t.Context(), "orders/42"); err != nil || !status.Held || !strings.HasPrefix(status.Owner, "_c_") || status.Waiters != 1 {
		t.Errorf("Inspect of their lock: got %+v, %v, want its node as the owner, and a waiter", status, err)
	}
	if err := other.Unlock(); err != nil {
		t.Fatal(err)
	}
	next := ours.Granted(t)
	if token(next) <= token(l) {
		t.Errorf("tokens: got %d, and before theirs %d: want them to rise", token(next), token(l))
	}
	release(t, next)
}

// TestLatchBesideLock has clients with latch nodes and other clients wait for
// each other.
func TestLatchBesideLock(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	latch, lock := openURL(t, "zk://%s?node=latch-", s.Addr), openURL(t, "zk://%s", s.Addr)
	for infix, ds := range map[string][2]driver.Driver{"-latch-": {latch, lock}, "-lock-": {lock, latch}} {
		l := acquire(t, ds[0], request("leader"))
		if got := first(t, c, "/leader"); len(got) != 1 || !strings.Contains(got[0], infix) {
			t.Errorf("the nodes are %q, want a node with %s", got, infix)
		}
		if _, err := ds[1].Acquire(t.Context(), noWait("leader")); err != driver.ErrLocked {
			t.Errorf("next to %s: got %v, want %v", infix, err, driver.ErrLocked)
		}
		w := wait(t, ds[1], request("leader"))
		release(t, l)
		release(t, w.Granted(t))
	}
}

// TestCounterBesideGoZookeeper has processes of both kinds add to a number in a
// file, under one lock.
func TestCounterBesideGoZookeeper(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := testenv.NewCounter(t)
	c.Spawn(4, "dsync", 500, 1, "ADDR="+s.Addr)
	c.Spawn(4, "go-zookeeper", 500, 1, "ADDR="+s.Addr)
	c.Run()
}

// roles are the programs that this test binary runs as another process; see
// testenv.Spawn.
var roles = map[string]func(){"dsync": dsyncRole, "go-zookeeper": goZookeeperRole, "curator": curatorRole}

func dsyncRole() {
	d, _, err := driver.Open(context.Background(), "zk://"+os.Getenv("ADDR"))
	if err != nil {
		panic(err)
	}
	testenv.Count(func() (func() error, error) {
		l, err := d.Acquire(context.Background(), request("counter/one"))
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	})
}

func goZookeeperRole() {
	c, _, err := gozk.Connect([]string{os.Getenv("ADDR")}, 30*time.Second, gozk.WithLogInfo(false))
	if err != nil {
		panic(err)
	}
	testenv.Count(func() (func() error, error) {
		l := gozk.NewLock(c, "/counter/one", gozk.WorldACL(gozk.PermAll))
		for {
			err := l.Lock()
			if !errors.Is(err, strconv.ErrSyntax) { // see the package comment of zk
				return l.Unlock, err
			}
		}
	})
}
