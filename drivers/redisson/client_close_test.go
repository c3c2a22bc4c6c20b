package redisson

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/testenv"
)

// The clients are closed at a random moment, while their callers send requests,
// are granted locks, release or give up.
func TestClientCloseAmidstRequestsLeavesNothingLocked(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	const rounds, clients, callers = 40, 4, 25
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range clients {
			c := client(t, s, "")
			all.Go(func() { contendAndClose(t, ctx, c, callers) })
		}
		// Any moment will do, so the test waits for no event.
		time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
		cancel()
		all.Wait()
		if keys := keysOf(s); len(keys) > 0 {
			t.Fatalf("round %d: keys left: %q, of the hold %v", round, keys, s.Do("HGETALL", keys[0]))
		}
	}
}

// contendAndClose has the callers hold one lock in turn until ctx ends, and
// then closes the client.
func contendAndClose(t *testing.T, ctx context.Context, c *dsync.Client, callers int) {
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			err := dsync.Do(ctx, c, "x", func(ctx context.Context) error {
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Do: %v", err)
			}
		})
	}
	wg.Wait()
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestCloseSaysWhatIsLeft closes clients whose server is frozen.
func TestCloseSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "?fair=true"} {
		s := testenv.Redis(t)
		c, err := dsync.Open(t.Context(), "redisson://"+s.Addr+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Lock(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		s.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err = c.Close(ctx)
		cancel()
		s.Thaw()
		if !errors.Is(err, dsync.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 holds") {
			t.Errorf("%q: Close: %v, want ErrUnknown, the deadline, and the number of holds that are left", query, err)
		}
	}
}

// TestCloseAfterARequestOfUnknownOutcome: once the server answers again, Close
// does not wait for the TTL of a possible grant.
func TestCloseAfterARequestOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	link := &wire.Wire{}
	defer link.Close()
	addr, err := link.Listen(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{"", "?fair=true"} {
		c, err := dsync.Open(t.Context(), "redisson://"+addr+"/"+query, &dsync.Options{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		link.Drop(wire.Requests)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err = c.Lock(ctx, "x")
		cancel()
		if !errors.Is(err, dsync.ErrUnknown) {
			t.Errorf("%q: Lock: %v, want ErrUnknown", query, err)
		}
		link.Cut()
		link.Heal()
		ctx, cancel = context.WithTimeout(t.Context(), hangGuard)
		begun := time.Now()
		err = c.Close(ctx)
		cancel()
		if took := time.Since(begun); err != nil || took < onItsWay {
			t.Errorf("%q: Close: %v after %v, want nil after a wait of %v", query, err, took, onItsWay)
		}
	}
}

// TestCloseAfterAnOutageOfANode: callers gave up while one node of a cluster
// was frozen, and then the node was restarted.
func TestCloseAfterAnOutageOfANode(t *testing.T) {
	t.Parallel()
	cluster := testenv.RedisCluster(t, 3, 0)
	other := clientOf(t, clusterURL(cluster))
	c, err := dsync.Open(t.Context(), clusterURL(cluster), &dsync.Options{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	node := cluster.Owner("x")
	held := lock(t, other, "x")
	node.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var callers sync.WaitGroup
	for range 5 {
		callers.Go(func() {
			if l, err := c.NewOwner().Lock(ctx, "x"); err == nil {
				t.Errorf("got a lease of %q on a frozen node", l.Name())
			}
		})
	}
	callers.Wait()
	node.Restart()
	held.Unlock(t.Context())
	ctx, cancel = context.WithTimeout(t.Context(), hangGuard)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestServerWithoutACommand: the server has executed nothing, so there is
// nothing to clean up.
func TestServerWithoutACommand(t *testing.T) {
	for _, test := range []struct{ command, query string }{
		{"EVALSHA", ""}, {"EVALSHA", "?fair=true"}, {"EVAL", ""}, {"EVAL", "?fair=true"},
	} {
		c := client(t, testenv.Redis(t, "--rename-command", test.command, ""), test.query)
		_, err := c.TryLock(t.Context(), "x")
		if err == nil || !strings.HasSuffix(err.Error(), "does not know the command "+test.command) {
			t.Errorf("%v: TryLock: %v, want an error that the command is missing", test, err)
		}
		begun := time.Now()
		if err := c.Close(t.Context()); err != nil || time.Since(begun) > 4*time.Second {
			t.Errorf("%v: Close: %v after %v, want nil immediately", test, err, time.Since(begun))
		}
	}
}

// The library may connect in goroutines that its Close does not wait for. Here
// the server accepts the connection and is slow with the TLS handshake.
func TestCloseEndsAttemptsToConnect(t *testing.T) {
	t.Parallel()
	slow, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	d := openURL(t, "%s", sentinelURL(testenv.RedisSentinel(t, 1)))
	dial := func() error {
		_, err := d.dialer.Dial(context.Background(), slow.Addr().String(), &net.Dialer{}, &tls.Config{ServerName: "slow"})
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- dial() }()
	c, err := slow.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := d.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	select {
	case err := <-failed:
		if err == nil {
			t.Error("the attempt has succeeded")
		}
	case <-time.After(hangGuard):
		t.Fatal("the attempt continues after Close")
	}
	if err := c.SetReadDeadline(time.Now().Add(hangGuard)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
	if err := dial(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection requested after Close: got %v, want net.ErrClosed", err)
	}
}
