// Package redsync tests drivers/redlock together with redsync on the same
// nodes.
package redsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m, map[string]func(){"redsync": incrementByRedsync, "dsync": incrementByDsync})
}

const (
	nodesVariable = "REDLOCK_TEST_NODES"
	lockName      = "interop {lock}/ä"
)

// startNodes starts five independent servers. Clients need not wait for new
// nodes, because of durable=true.
func startNodes(t *testing.T) (nodes []*testenv.RedisServer, addresses string) {
	var all []string
	for range 5 {
		s := testenv.Redis(t)
		nodes, all = append(nodes, s), append(all, s.Addr)
	}
	return nodes, strings.Join(all, ",")
}

func dsyncURL(addresses string) string { return "redlock://" + addresses + "?durable=true" }

// awaitClear waits until no node has the key of the lock.
func awaitClear(t *testing.T, nodes []*testenv.RedisServer) {
	t.Helper()
	for _, s := range nodes {
		testenv.Eventually(t, func() bool { return s.Do("EXISTS", lockName) == int64(0) }, "the lock is gone from "+s.Addr)
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func newRedsync(addresses []string) (_ *redsync.Redsync, stop func(), err error) {
	var pools []redsyncredis.Pool
	var clients []rueidis.Client
	stop = func() {
		for _, c := range clients {
			c.Close()
		}
	}
	for _, address := range addresses {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, ForceSingleClient: true, DisableCache: true})
		if err != nil {
			stop()
			return nil, nil, err
		}
		clients = append(clients, client)
		pools = append(pools, redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client)))
	}
	return redsync.New(pools...), stop, nil
}

func incrementByRedsync() {
	rs, stop, err := newRedsync(strings.Split(os.Getenv(nodesVariable), ","))
	exitOn(err)
	defer stop()
	testenv.Count(func() (func() error, error) {
		m := rs.NewMutex(lockName, redsync.WithTries(1_000_000), redsync.WithExpiry(20*time.Second),
			// Clients that retry in step split the votes again.
			redsync.WithRetryDelayFunc(func(int) time.Duration { return time.Millisecond + rand.N(8*time.Millisecond) }))
		return func() error {
			_, err := m.Unlock()
			return err
		}, m.Lock()
	})
}

func incrementByDsync() {
	c, err := dsync.Open(context.Background(), dsyncURL(os.Getenv(nodesVariable)), &dsync.Options{TTL: 20 * time.Second})
	exitOn(err)
	testenv.Count(func() (func() error, error) {
		l, err := c.Lock(context.Background(), lockName)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Unlock(context.Background()) }, nil
	})
	exitOn(c.Close(context.Background()))
}

// TestCounter makes processes of both libraries increment one number under one
// lock.
func TestCounter(t *testing.T) {
	nodes, addresses := startNodes(t)
	env := nodesVariable + "=" + addresses
	c := testenv.NewCounter(t)
	c.Spawn(4, "redsync", 500, 1, env)
	c.Spawn(4, "dsync", 500, 1, env)
	c.Run()
	awaitClear(t, nodes)
}

// TestExclusion makes each library hold the lock while the other one requests
// it.
func TestExclusion(t *testing.T) {
	nodes, addresses := startNodes(t)
	c, err := dsync.Open(t.Context(), dsyncURL(addresses), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	rs, stop, err := newRedsync(strings.Split(addresses, ","))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	l, err := c.Lock(t.Context(), lockName)
	if err != nil {
		t.Fatal(err)
	}
	m := rs.NewMutex(lockName)
	if err := m.TryLock(); err == nil {
		t.Error("redsync was granted a lock that dsync holds")
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitClear(t, nodes)
	if err := m.Lock(); err != nil {
		t.Fatalf("redsync after the unlock: %v", err)
	}
	if _, err := c.TryLock(t.Context(), lockName); !errors.Is(err, dsync.ErrLocked) {
		t.Errorf("dsync while redsync holds the lock: got %v, want ErrLocked", err)
	}
	if ok, err := m.Extend(); !ok || err != nil {
		t.Errorf("redsync's Extend: got %t, %v", ok, err)
	}
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Errorf("redsync's Unlock: got %t, %v", ok, err)
	}
	if l, err = c.Lock(t.Context(), lockName); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
