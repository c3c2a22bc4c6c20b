package zk_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	if !ours.waits() {
		t.Error("we were granted the lock before those who asked first")
	}
	if _, err := d.Acquire(t.Context(), noWait("orders/42")); err != driver.ErrLocked {
		t.Errorf("our TryLock beside their lock: got %v, want %v", err, driver.ErrLocked)
	}
	if status, err := d.Inspect(t.Context(), "orders/42"); err != nil || !status.Held || !strings.HasPrefix(status.Owner, "_c_") || status.Waiters != 1 {
		t.Errorf("Inspect of their lock: got %+v, %v, want its node as the owner, and a waiter", status, err)
	}
	if err := other.Unlock(); err != nil {
		t.Fatal(err)
	}
	next := ours.granted(t)
	if token(next) <= token(l) {
		t.Errorf("tokens: got %d, and before theirs %d: want them to rise", token(next), token(l))
	}
	release(t, next)
}

const (
	processes  = 4 // of each kind
	increments = 500
)

// TestCounterBesideGoZookeeper has processes of both kinds add to a number in a file, under one lock.
func TestCounterBesideGoZookeeper(t *testing.T) {
	s := testenv.ZooKeeper(t)
	countTogether(t, s, func() []*testenv.Process {
		var all []*testenv.Process
		for range processes {
			all = append(all, testenv.Spawn(t, "go-zookeeper", counterEnv(t, s)...))
		}
		return all
	})
}

func counterEnv(tb testing.TB, s *testenv.ZooKeeperServer) []string {
	return []string{"ADDR=" + s.Addr, "FILE=" + counterFile(tb)}
}

func counterFile(tb testing.TB) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("dsync-zk-counter-%d-%s", os.Getpid(), tb.Name()))
}

// countTogether runs processes of dsync beside others, which say "ready", begin at a line, and then say "done" or what went wrong.
func countTogether(t *testing.T, s *testenv.ZooKeeperServer, others func() []*testenv.Process) {
	t.Helper()
	file := counterFile(t)
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file) })
	all := others()
	for range processes {
		all = append(all, testenv.Spawn(t, "dsync", counterEnv(t, s)...))
	}
	for _, p := range all {
		if got := p.Line(); got != "ready" {
			t.Fatalf("a process said %q, want ready", got)
		}
	}
	for _, p := range all {
		p.Send("go")
	}
	for _, p := range all {
		if got := p.Line(); got != "done" {
			t.Errorf("a process said %q, want done", got)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(text), strconv.Itoa(len(all)*increments); got != want {
		t.Errorf("counter: got %s, want %s", got, want)
	}
}

func init() {
	roles["dsync"] = func() {
		countRole(func(addr string) (func() (unlock func() error, err error), error) {
			d, _, err := driver.Open(context.Background(), "zk://"+addr)
			if err != nil {
				return nil, err
			}
			return func() (func() error, error) {
				ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
				defer cancel()
				l, err := d.Acquire(ctx, request("counter/one"))
				if err != nil {
					return nil, err
				}
				return func() error { return l.Release(context.Background()) }, nil
			}, nil
		})
	}
	roles["go-zookeeper"] = func() {
		countRole(func(addr string) (func() (unlock func() error, err error), error) {
			c, _, err := gozk.Connect([]string{addr}, 30*time.Second, gozk.WithLogInfo(false))
			if err != nil {
				return nil, err
			}
			return func() (func() error, error) {
				l := gozk.NewLock(c, "/counter/one", gozk.WorldACL(gozk.PermAll))
				if err := l.Lock(); err != nil {
					return nil, err
				}
				return l.Unlock, nil
			}, nil
		})
	}
}

// countRole is what a process does.
func countRole(open func(addr string) (func() (unlock func() error, err error), error)) {
	err := func() error {
		lock, err := open(os.Getenv("ADDR"))
		if err != nil {
			return err
		}
		fmt.Println("ready")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
		for range increments {
			unlock, err := lock()
			if err != nil {
				return err
			}
			if err := addOne(os.Getenv("FILE")); err != nil {
				return err
			}
			if err := unlock(); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("done")
}

// addOne is not safe for concurrent use, and so makes two holders visible.
func addOne(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(file, strconv.AppendInt(nil, int64(n)+1, 10), 0o600)
}
