package redisson

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// fill makes n locks, with one request.
func fill(s *testenv.RedisServer, n int) {
	s.Do("EVAL", "for i=1,ARGV[1] do redis.call('HSET','n'..i,'client:1',1) redis.call('PEXPIRE','n'..i,600000) end", "0", strconv.Itoa(n))
}

func TestListOfManyNames(t *testing.T) {
	t.Parallel()
	const n = 20_000
	s := testenv.Redis(t)
	fill(s, n)
	s.Do("SET", "text", "1")
	s.Do("HSET", "other", "field", "1")
	d := openURL(t, "redisson://%s", s.Addr)
	var names []string
	counts := counted(s, func() {
		var err error
		if names, err = drivertest.Listed(t, t.Context(), d, ""); err != nil {
			t.Fatal(err)
		}
	}, "scan")
	if len(names) != n {
		t.Errorf("got %d names, want %d", len(names), n)
	}
	if most := int64(n / 100); counts["scan"] > most {
		t.Errorf("got %d scans, want at most %d", counts["scan"], most)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	seen := 0
	for _, err := range d.List(ctx, "") {
		cancel() // between pages, at the latest
		seen, last = seen+1, err
	}
	if !errors.Is(last, context.Canceled) || seen > n/2 {
		t.Errorf("List with a context that ends: got %d names and %v", seen, last)
	}
}

// TestListWhenTheServerIsStartedAgain wants an error, because an old cursor
// means nothing to a restarted server.
func TestListWhenTheServerIsStartedAgain(t *testing.T) {
	const n = 5000
	s := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	fill(s, n)
	d := openURL(t, "redisson://%s", s.Addr)
	seen, restarted := map[string]bool{}, false
	var last error
	for name, err := range d.List(t.Context(), "") {
		if !restarted {
			restarted = true
			s.Restart()
		}
		if last = err; err == nil {
			seen[name] = true
		}
	}
	if last == nil && len(seen) < n {
		t.Errorf("List ended without an error, and left out %d names", n-len(seen))
	}
	if last == nil {
		t.Error("List went on after a restart of the server")
	}
}

func TestListOfSilentServer(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	if names, err := drivertest.Listed(t, t.Context(), d, ""); err != nil || len(names) > 0 {
		t.Fatalf("got %q and %v", names, err)
	}
	drivertest.ListOfSilentServer(t, d, s.Freeze, s.Thaw)
}

// testClusterList lists names of all nodes, and queries no replica.
func testClusterList(t *testing.T, c *testenv.Cluster) {
	d := openURL(t, "%s", clusterURL(c))
	const n = 30
	for i := range n {
		acquire(t, d, request(fmt.Sprint("list", i)))
	}
	var names []string
	counts := counted(c.Nodes[len(c.Nodes)-1], func() {
		var err error
		if names, err = drivertest.Listed(t, t.Context(), d, "list"); err != nil {
			t.Error(err)
		}
	}, "scan")
	if len(names) != n || counts["scan"] > 0 {
		t.Errorf("got %d names, and %d scans of a replica, want %d and none", len(names), counts["scan"], n)
	}
}

// TestListOnABusyServer: the server refuses all commands, and the client
// library does not panic.
func TestListOnABusyServer(t *testing.T) {
	s := testenv.Redis(t, "--busy-reply-threshold", "1")
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, forLong("x"))
	list := func() (names []string, err error) {
		for name, err := range d.List(t.Context(), "") {
			if err != nil {
				return nil, err
			}
			names = append(names, name)
		}
		return names, nil
	}
	script := make(chan struct{})
	go func() { // ends with SCRIPT KILL
		defer close(script)
		_, _ = s.Try("EVAL", "while true do end", "0")
	}()
	testenv.Eventually(t, func() bool {
		_, err := s.Try("PING")
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	}, "the server is busy")
	if names, err := list(); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("List: got %q, %v, want ErrUnavailable", names, err)
	}
	s.Do("SCRIPT", "KILL")
	<-script
	if names, err := list(); err != nil || !slices.Equal(names, []string{"x"}) {
		t.Errorf("List: got %q, %v, want x", names, err)
	}
	release(t, l)
}
