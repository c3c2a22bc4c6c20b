package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// benched returns the report of `bench --json` for short workloads without a
// rate limit.
func benched(t *testing.T, args ...string) benchReport {
	t.Helper()
	var r benchReport
	out, err := clitest.Run(drivertest.Guard(t), Command(), append([]string{"--json", "--for", "50ms", "--rate", "0", "--callers", "8"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return r
}

// TestBench measures backends and checks that nothing new is left on them.
func TestBench(t *testing.T) {
	t.Parallel()
	redis := testenv.Redis(t)
	zk := testenv.ZooKeeper(t)
	for name, test := range map[string]struct {
		url  string
		left func(t *testing.T) string
	}{
		"memory":   {"memory://bench", func(*testing.T) string { return "" }},
		"redisson": {"redisson://" + redis.Addr, func(*testing.T) string { return redisKeys(redis) }},
		"fence":    {"redisson://" + redis.Addr + "?fence=redisson", func(*testing.T) string { return redisKeys(redis) }},
		"etcd":     {"etcd://" + testenv.Etcd(t).Addr + "/locks/", func(*testing.T) string { return "" }},
		"pglock":   {testenv.Postgres(t).URL("pglock") + "?sslmode=disable", func(*testing.T) string { return "" }},
		"zk":       {"zk://" + zk.Addr + "/a/b", func(t *testing.T) string { return zkNodes(t, zk.Addr) }},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they share a server
			before := test.left(t)
			file := filepath.Join(t.TempDir(), "url")
			if err := os.WriteFile(file, []byte(test.url), 0o600); err != nil {
				t.Fatal(err)
			}
			r := benched(t, "--url-file", file)
			if len(r.Workloads) != 5 || strings.Contains(r.URL, testenv.PasswordMark) {
				t.Fatalf("got %+v", r)
			}
			for i, m := range r.Workloads {
				if m.Workload != i+1 || m.Locks == 0 || m.P50Msec > m.P99Msec || m.Bounded {
					t.Errorf("got %+v", m)
				}
			}
			if left := test.left(t); left != before {
				t.Errorf("bench left %s, want %s as before", left, before)
			}
		})
	}
}

// redisKeys returns the keys of a server, except the sequences of tokens, which
// belong to no name.
func redisKeys(s *testenv.RedisServer) string {
	return fmt.Sprint(slices.DeleteFunc(s.Do("KEYS", "*").([]any), func(key any) bool { return strings.HasPrefix(key.(string), "dsync_fence:") }))
}

// zkNodes returns the nodes at the root of a server.
func zkNodes(t *testing.T, addr string) string {
	t.Helper()
	conn, _, err := gozk.Connect([]string{addr}, drivertest.HangGuard, gozk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	nodes, _, err := conn.Children("/")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(nodes)
}

// TestBenchEndsWhenInterrupted interrupts bench at arbitrary times and checks
// that nothing is left behind.
func TestBenchEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	for after := 5 * time.Millisecond; after < time.Second; after *= 3 {
		ctx, cancel := context.WithTimeout(drivertest.Guard(t), after)
		if _, err := clitest.Run(ctx, Command(), "--for", "200ms", "redisson://"+s.Addr); err == nil {
			t.Errorf("bench, interrupted after %v, ended without an error", after)
		}
		cancel()
		if left := redisKeys(s); left != "[]" {
			t.Fatalf("bench, interrupted after %v, left %s", after, left)
		}
	}
}

// TestPacer makes many calls simultaneously. As many of them continue as the
// rate allows until the end, at even intervals.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := newPacer(100), time.Now()
		end := began.Add(time.Second)
		turns := make(chan time.Duration, 1000)
		for range 150 {
			go func() {
				if p.wait(t.Context(), end) {
					turns <- time.Since(began)
				}
			}()
		}
		time.Sleep(2 * time.Second)
		for i := range 100 {
			if got, want := <-turns, time.Duration(i)*10*time.Millisecond; got != want {
				t.Errorf("turn %d: got %v, want %v", i, got, want)
			}
		}
		if len(turns) > 0 {
			t.Errorf("%d extra turns", len(turns))
		}
		if !p.wait(t.Context(), time.Now().Add(time.Millisecond)) {
			t.Error("the next workload has no turn")
		}
	})
}

// TestPictureOfBench compares the output of `bench` in docs/operations.md with
// the code.
func TestPictureOfBench(t *testing.T) {
	r := benchReport{URL: "redisson://redis:6379", Rate: 1000}
	for i, m := range []measured{
		{PerSecond: 912.4, P50Msec: 1.02, P99Msec: 2.31}, {PerSecond: 998.7, Bounded: true, P50Msec: 1.31, P99Msec: 4.4},
		{PerSecond: 999.1, Bounded: true, P50Msec: 0.61, P99Msec: 3.87}, {P50Msec: 1.64, P99Msec: 3.02}, {PerSecond: 996.3, Bounded: true, P50Msec: 0.83, P99Msec: 5.1},
	} {
		m.Workload, m.Title, m.Of = i+1, workloads[i].title, workloads[i].of
		r.Workloads = append(r.Workloads, m)
	}
	var text strings.Builder
	if err := r.fill(&text, 80); err != nil {
		t.Fatal(err)
	}
	clitest.WantPicture(t, text.String())
}
