// Package interop tests drivers/redisson together with Java's Redisson. Java
// and Go programs share one Redis server.
package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

func TestMain(m *testing.M) {
	testenv.Main(m, map[string]func(){"java": javaRole, "holder": holderRole, "soak": soakRole, "reader": readWriteRole})
}

// hangGuard limits every wait. It is not an expected duration.
const hangGuard = 60 * time.Second

const (
	watchdog      = 30 * time.Second // of Redisson, where a scenario does not wait for it to expire
	shortWatchdog = 3 * time.Second  // where a scenario waits
)

// bed is the environment of scenarios: Redis, and a Java process with a client
// of it.
type bed struct {
	version   string // of Redisson
	java      *jvm
	mode      string // single or cluster
	addrs     []string
	nodes     []*testenv.RedisServer
	node      func(key string) *testenv.RedisServer // the server that stores a key
	parameter string                                // of URLs
	redisson  *redisson
	hasty     *redisson // with shortWatchdog
}

// onBeds runs scenarios with each version of Redisson. They run concurrently,
// because they usually wait.
func onBeds(t *testing.T, kind string, run func(t *testing.T, b *bed)) {
	if kind == "single" {
		for _, version := range agent.Versions(agent.New, agent.Old) {
			t.Run("redisson "+version, func(t *testing.T) { t.Parallel(); run(t, singleBed(t, version)) })
		}
		return
	}
	for _, version := range agent.Versions(agent.New, agent.Old, agent.Middle) {
		t.Run("cluster, redisson "+version, func(t *testing.T) { t.Parallel(); run(t, clusterBed(t, version)) })
	}
}

func singleBed(t *testing.T, version string) *bed {
	return serverBed(testenv.Redis(t), version).withJava(t)
}

func clusterBed(t *testing.T, version string) *bed {
	return mastersBed(testenv.RedisCluster(t, 3, 0), version).withJava(t)
}

// serverBed returns a bed with one server and without a Java process.
func serverBed(server *testenv.RedisServer, version string) *bed {
	b := &bed{version: version, mode: "single", addrs: []string{server.Addr}, nodes: []*testenv.RedisServer{server}}
	b.node = func(string) *testenv.RedisServer { return server }
	return b
}

// mastersBed returns a bed with a cluster and without a Java process.
func mastersBed(cluster *testenv.Cluster, version string) *bed {
	b := &bed{version: version, mode: "cluster", addrs: cluster.Addrs(), nodes: cluster.Nodes, node: cluster.Owner}
	b.parameter = "&mode=cluster"
	if agent.Before(version, agent.SeesShards) {
		b.parameter += "&pubsub=both"
	}
	return b
}

func (b *bed) withJava(t *testing.T) *bed {
	b.java = startJava(t, b.version)
	b.redisson = b.java.open(t, b.mode, b.addrs, watchdog)
	b.hasty = b.java.open(t, b.mode, b.addrs, shortWatchdog)
	return b
}

// url returns the URL with which Go opens the bed, with additional parameters
// ("&ttl=3s").
func (b *bed) url(parameters string) string {
	return "redisson://" + strings.Join(b.addrs, ",") + "?fence=redisson" + b.parameter + parameters
}

// client returns a Go client.
func (b *bed) client(tb testing.TB, parameters string) *dsync.Client {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	c, err := dsync.Open(ctx, b.url(parameters), nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return c
}

var names atomic.Int64

// fresh returns a name that no scenario has used before and that is not part of
// another name.
func fresh(what string) string { return fmt.Sprintf("%s-%d.", what, names.Add(1)) }

func channelOf(name string) string {
	if strings.Contains(name, "{") {
		return "redisson_lock__channel:" + name
	}
	return "redisson_lock__channel:{" + name + "}"
}

// fields returns the hash stored at a name. The value of a Go hold with tokens
// contains more than a count. It is returned as the count 1.
func (b *bed) fields(name string) map[string]string {
	got := make(map[string]string)
	list := b.node(name).Do("HGETALL", name).([]any)
	for i := 0; i < len(list); i += 2 {
		value := list[i+1].(string)
		if strings.HasPrefix(value, "#") {
			value = "1"
		}
		got[list[i].(string)] = value
	}
	return got
}

// holds checks that the hash at a name consists of one field, the owner, with a
// count.
func (b *bed) holds(tb testing.TB, name, owner, count string) {
	tb.Helper()
	if got, want := b.fields(name), map[string]string{owner: count}; !maps.Equal(got, want) {
		tb.Errorf("hash at %q: got %v, want %v", name, got, want)
	}
}

// heldByGo checks that there is one field, which does not belong to a Java
// thread, and returns the field.
func (b *bed) heldByGo(tb testing.TB, name string, lease *dsync.Lease) string {
	tb.Helper()
	got := b.fields(name)
	for field, count := range got {
		if len(got) == 1 && count == "1" {
			return field
		}
	}
	tb.Errorf("hash at %q: got %v, want one field with the count 1", name, got)
	return ""
}

// lasts checks that the TTL of a key is positive and not longer than most.
func (b *bed) lasts(tb testing.TB, name string, most time.Duration) {
	tb.Helper()
	if left := b.node(name).Do("PTTL", name).(int64); left <= 0 || left > most.Milliseconds() {
		tb.Errorf("PTTL of %q: got %d, want more than 0 and at most %d", name, left, most.Milliseconds())
	}
}

// free waits until no key is left of a lock, and no client subscribes to its
// channel.
func (b *bed) free(tb testing.TB, name string) {
	tb.Helper()
	b.gone(tb, name)
	testenv.Eventually(tb, func() bool { return b.node(name).SubscriberCount(channelOf(name)) == 0 }, "nobody listens for "+name)
}

// gone waits until no key is left of a lock, except the counter of fenced
// locks, the queue of waiters, and the latches by which Redisson recognizes a
// repeated unlock. In a cluster, Redisson 4.2.0 leaves these latches until they
// expire after at most 20 s. Other versions delete them after the response.
func (b *bed) gone(tb testing.TB, name string) {
	tb.Helper()
	testenv.Eventually(tb, func() bool {
		for _, key := range b.node(name).Do("KEYS", "*").([]any) {
			key := key.(string)
			stays := strings.HasPrefix(key, "redisson_lock_token:") || strings.HasPrefix(key, "redisson_unlock_latch:") || strings.HasPrefix(key, "dsync_turn:")
			if strings.Contains(key, name) && !stays {
				return false
			}
		}
		return true
	}, "there are no remains of "+name)
}

// subscribed waits until a channel has the given number of subscribers.
func (b *bed) subscribed(tb testing.TB, channel string, want int64) {
	tb.Helper()
	testenv.Eventually(tb, func() bool {
		if b.mode == "single" || !agent.Before(b.version, agent.SeesShards) {
			return b.node(channel).SubscriberCount(channel) >= want
		}
		n := int64(0)
		for _, node := range b.nodes { // in a cluster, a plain channel has subscribers on any node
			n += node.SubscriberCount(channel)
		}
		return n >= want
	}, fmt.Sprintf("%d subscribers of %s", want, channel))
}

// goWait is a call to Lock in another goroutine.
type goWait struct {
	cancel context.CancelFunc
	done   chan struct{}
	lease  *dsync.Lease
	err    error
	at     time.Time // end of the call
}

func lockLater(l dsync.Locker, name string) *goWait {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	w := &goWait{cancel: cancel, done: make(chan struct{})}
	go func() { // ends when ctx ends
		defer close(w.done)
		w.lease, w.err = l.Lock(ctx, name)
		w.at = time.Now()
	}()
	return w
}

func (w *goWait) ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *goWait) granted(tb testing.TB) *dsync.Lease {
	tb.Helper()
	<-w.done
	if w.err != nil {
		tb.Fatalf("Lock after a wait: %v", w.err)
	}
	return w.lease
}

func lock(tb testing.TB, l dsync.Locker, name string, opts ...dsync.LockOption) *dsync.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	lease, err := l.Lock(ctx, name, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return lease
}

func unlock(tb testing.TB, l *dsync.Lease) {
	tb.Helper()
	if err := l.Unlock(context.Background()); err != nil {
		tb.Errorf("Unlock: %v", err)
	}
}

// refuses checks that TryLock returns ErrLocked.
func refuses(tb testing.TB, c dsync.Locker, name string) {
	tb.Helper()
	lease, err := c.TryLock(context.Background(), name)
	if !errors.Is(err, dsync.ErrLocked) {
		tb.Errorf("TryLock: got %v, %v, want ErrLocked", lease, err)
	}
}

// lost waits until a lease ends and checks that the lease reports a loss.
func lost(tb testing.TB, l *dsync.Lease) {
	tb.Helper()
	select {
	case <-l.Done():
	case <-time.After(hangGuard):
		tb.Fatal("the holder was not notified")
	}
	if !errors.Is(l.Err(), dsync.ErrLost) {
		tb.Errorf("Err of the lease: got %v, want ErrLost", l.Err())
	}
	if err := l.Unlock(context.Background()); !errors.Is(err, dsync.ErrNotHeld) {
		tb.Errorf("Unlock: got %v, want ErrNotHeld", err)
	}
}

// holderRole acquires a lock and holds it until its standard input ends. It
// prints a line when it has acquired the lock, and another when the lease has
// ended.
func holderRole() {
	ctx := context.Background()
	c, err := dsync.Open(ctx, os.Getenv("LOCK_URL"), nil)
	if err != nil {
		panic(err)
	}
	lease, err := c.Lock(ctx, os.Getenv("LOCK_NAME"))
	if err != nil {
		panic(err)
	}
	fmt.Println("held")
	<-lease.Done()
	fmt.Println("over", errors.Is(lease.Err(), dsync.ErrLost), errors.Is(lease.Unlock(ctx), dsync.ErrNotHeld))
	select {}
}

// holder starts a Go process that waits for a name and holds it.
func (b *bed) holder(tb testing.TB, name, parameters string) *testenv.Process {
	return testenv.Spawn(tb, "holder", "LOCK_NAME="+name, "LOCK_URL="+b.url(parameters))
}
