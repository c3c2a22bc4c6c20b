package etcd_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// newMutex returns a mutex of package concurrency with its own session.
func newMutex(tb testing.TB, c *clientv3.Client, name string) *concurrency.Mutex {
	tb.Helper()
	return concurrency.NewMutex(newSession(tb, c), name)
}

func newSession(tb testing.TB, c *clientv3.Client) *concurrency.Session {
	tb.Helper()
	session, err := concurrency.NewSession(c, concurrency.WithTTL(30))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { session.Close() })
	return session
}

func TestMutexOfPackageConcurrency(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	other := newMutex(t, c, "orders/42")

	l := acquire(t, d, request("orders/42"))
	if err := other.TryLock(t.Context()); err != concurrency.ErrLocked {
		t.Errorf("their TryLock while we hold the lock: got %v, want %v", err, concurrency.ErrLocked)
	}
	theirs := make(chan error, 1)
	go func() { theirs <- other.Lock(guard(t)) }()
	testenv.Eventually(t, func() bool { return len(keys(t, c, "orders/42/")) == 2 }, "they wait behind us")
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
	if err := other.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := ours.Granted(t)
	if token(next) <= uint64(other.Header().Revision) || token(l) >= uint64(other.Header().Revision) {
		t.Errorf("tokens: got %d, theirs %d, %d: want them to rise", token(l), other.Header().Revision, token(next))
	}
	release(t, next)
}

// etcdctlLock runs `etcdctl lock` until end is called. The channel receives the
// fencing token once the command holds the lock.
func etcdctlLock(tb testing.TB, s *testenv.EtcdServer, name string) (token <-chan uint64, end func()) {
	tb.Helper()
	tokens := make(chan uint64, 1)
	var group sync.WaitGroup
	released := make(chan struct{})
	group.Go(func() { // ends when the process ends
		rev, unlock, err := runEtcdctlLock(s.Ctl, s.Addr, name)
		if err != nil {
			tb.Error(err)
			close(tokens)
			return
		}
		tokens <- rev
		<-released
		if err := unlock(); err != nil {
			tb.Error(err)
		}
	})
	end = sync.OnceFunc(func() {
		close(released)
		group.Wait()
	})
	tb.Cleanup(end)
	return tokens, end
}

// runEtcdctlLock returns when `etcdctl lock` holds the lock. The command that
// it runs under the lock, which has no standard input, reads from a named pipe,
// so it ends when unlock opens the pipe.
func runEtcdctlLock(ctl, addr, name string) (token uint64, unlock func() error, err error) {
	dir, err := os.MkdirTemp("", "dsync-etcdctl-")
	if err != nil {
		return 0, nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	pipe := filepath.Join(dir, "pipe")
	if err := exec.Command("mkfifo", pipe).Run(); err != nil {
		return 0, nil, err
	}
	cmd := exec.Command(ctl, "--endpoints", addr, "lock", name, "--", "sh", "-c", "echo $ETCD_LOCK_REV; exec cat "+pipe)
	cmd.Env = append(cmd.Environ(), "ETCDCTL_API=3")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	out := bufio.NewReader(stdout)
	wait := func() error {
		io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("etcdctl: %w: %s", err, stderr.Bytes())
		}
		return nil
	}
	line, err := out.ReadString('\n')
	if err != nil {
		return 0, nil, errors.Join(err, wait())
	}
	if token, err = strconv.ParseUint(strings.TrimSpace(line), 10, 64); err != nil {
		return 0, nil, err
	}
	return token, func() error {
		defer os.RemoveAll(dir)
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		w.Close()
		return wait()
	}, nil
}

func TestEtcdctlLock(t *testing.T) {
	for name, start := range map[string]func(testing.TB, ...string) *testenv.EtcdServer{
		"current": testenv.Etcd, "packaged": testenv.PackagedEtcd,
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			c := userClient(t, s.Addr)
			d := openURL(t, "etcd://%s", s.Addr)
			l := acquire(t, d, request("orders"))
			theirs, end := etcdctlLock(t, s, "orders")
			testenv.Eventually(t, func() bool { return len(keys(t, c, "orders/")) == 2 }, "etcdctl waits behind us")
			w := wait(t, d, request("orders"))
			release(t, l)
			second := <-theirs
			testenv.Eventually(t, func() bool { return len(keys(t, c, "orders/")) == 2 }, "we wait behind etcdctl")
			if !w.Waits() {
				t.Error("we were granted the lock that etcdctl holds")
			}
			end()
			next := w.Granted(t)
			if first, third := token(l), token(next); first >= second || second >= third {
				t.Errorf("tokens: got %d, etcdctl %d, %d: want them to rise", first, second, third)
			}
			release(t, next)
		})
	}
}

// roles are the programs that this test binary runs as another process; see
// testenv.Spawn.
var roles = map[string]func(){"dsync": dsyncRole, "mutex": mutexRole, "etcdctl": etcdctlRole, "terminated": drivertest.TerminatedRole,
	"write": writeRole, "rwmutex": rwmutexRole}

func dsyncRole() { countIn(driver.Exclusive) }
func writeRole() { countIn(driver.Write) }

func countIn(mode driver.Mode) {
	d, _, err := driver.Open(context.Background(), "etcd://"+os.Getenv("ADDR"))
	if err != nil {
		panic(err)
	}
	testenv.Count(func() (func() error, error) {
		l, err := d.Acquire(context.Background(), in(mode, request("counter")))
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	})
}

// sessionOfRole returns a session of package concurrency for the process of a
// role.
func sessionOfRole() *concurrency.Session {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ADDR")}, Logger: zap.NewNop()})
	if err != nil {
		panic(err)
	}
	session, err := concurrency.NewSession(c)
	if err != nil {
		panic(err)
	}
	return session
}

func mutexRole() {
	mutex := concurrency.NewMutex(sessionOfRole(), "counter")
	testenv.Count(func() (func() error, error) {
		return func() error { return mutex.Unlock(context.Background()) }, mutex.Lock(context.Background())
	})
}

func etcdctlRole() {
	testenv.Count(func() (func() error, error) {
		_, unlock, err := runEtcdctlLock(os.Getenv("CTL"), os.Getenv("ADDR"), "counter")
		return unlock, err
	})
}

// Four processes of each kind add 500 each. The other processes acquire the
// lock less often and add more at a time, because waking them takes a tenth of
// a second.
func TestCounterBesideOthers(t *testing.T) {
	for other, ours := range map[string]string{"mutex": "dsync", "etcdctl": "dsync", "rwmutex": "write"} {
		t.Run(other, func(t *testing.T) {
			s := testenv.Etcd(t)
			c := testenv.NewCounter(t)
			c.Spawn(4, ours, 500, 1, "ADDR="+s.Addr)
			c.Spawn(4, other, 50, 10, "ADDR="+s.Addr, "CTL="+s.Ctl)
			c.Run()
		})
	}
}
