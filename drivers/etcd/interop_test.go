package etcd_test

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/testenv"
)

// newMutex returns a mutex of package concurrency with a session of its own.
func newMutex(tb testing.TB, c *clientv3.Client, name string) *concurrency.Mutex {
	tb.Helper()
	session, err := concurrency.NewSession(c, concurrency.WithTTL(30))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { session.Close() })
	return concurrency.NewMutex(session, name)
}

func TestMutexOfPackageConcurrency(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", s.Addr)
	other := newMutex(t, c, "orders/42")

	l := acquire(t, d, request("orders/42"))
	if err := other.TryLock(t.Context()); err != concurrency.ErrLocked {
		t.Errorf("their TryLock beside our lock: got %v, want %v", err, concurrency.ErrLocked)
	}
	theirs := make(chan error, 1)
	go func() { theirs <- other.Lock(guard(t)) }()
	testenv.Eventually(t, func() bool { return len(keys(t, c, "orders/42/")) == 2 }, "they wait behind us")
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
	if err := other.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := ours.granted(t)
	if token(next) <= uint64(other.Header().Revision) || token(l) >= uint64(other.Header().Revision) {
		t.Errorf("tokens: got %d, theirs %d, %d: want them to rise", token(l), other.Header().Revision, token(next))
	}
	release(t, next)
}

// etcdctlLock runs `etcdctl lock` until its standard input ends. The channel gives the fencing token once it has the lock.
func etcdctlLock(tb testing.TB, s *testenv.EtcdServer, name string) (token <-chan uint64, end func()) {
	tb.Helper()
	cmd := exec.Command(s.Ctl, "--endpoints", s.Addr, "lock", name, "--", "sh", "-c", "echo $ETCD_LOCK_REV; exec cat")
	cmd.Env = append(cmd.Environ(), "ETCDCTL_API=3")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tokens := make(chan uint64, 1)
	var reader sync.WaitGroup
	reader.Go(func() { // ends with the process
		var line []byte
		for one := make([]byte, 1); ; {
			if _, err := stdout.Read(one); err != nil {
				return
			}
			if one[0] == '\n' {
				break
			}
			line = append(line, one[0])
		}
		n, _ := strconv.ParseUint(string(line), 10, 64)
		tokens <- n
		io.Copy(io.Discard, stdout)
	})
	end = sync.OnceFunc(func() {
		stdin.Close()
		reader.Wait()
		if err := cmd.Wait(); err != nil {
			tb.Errorf("etcdctl: %v: %s", err, stderr.Bytes())
		}
	})
	tb.Cleanup(end)
	return tokens, end
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
			if !w.waits() {
				t.Error("we were granted the lock before etcdctl, which asked first")
			}
			end()
			next := w.granted(t)
			if first, third := token(l), token(next); first >= second || second >= third {
				t.Errorf("tokens: got %d, etcdctl %d, %d: want them to rise", first, second, third)
			}
			release(t, next)
		})
	}
}

// TestCounterBesideMutexes has goroutines of both kinds add to one number under one lock.
func TestCounterBesideMutexes(t *testing.T) {
	t.Parallel()
	const workers, rounds = 4, 25
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	var counter strings.Builder // not safe for concurrent use, as the race detector sees
	var group sync.WaitGroup
	for range workers {
		mutex := newMutex(t, c, "counter")
		d := openURL(t, "etcd://%s", s.Addr)
		group.Go(func() {
			for range rounds {
				if err := mutex.Lock(guard(t)); err != nil {
					t.Error(err)
					return
				}
				counter.WriteByte('.')
				if err := mutex.Unlock(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
		group.Go(func() { count(t, d, rounds, &counter) })
	}
	group.Wait()
	if got, want := counter.Len(), 2*workers*rounds; got != want {
		t.Errorf("counter: got %d, want %d", got, want)
	}
}

func count(t *testing.T, d *etcd.Driver, rounds int, counter *strings.Builder) {
	for range rounds {
		l, err := d.Acquire(guard(t), request("counter"))
		if err != nil {
			t.Error(err)
			return
		}
		counter.WriteByte('.')
		release(t, l)
	}
}
