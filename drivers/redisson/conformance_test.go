package redisson_test

import (
	"crypto/sha1"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestMain of this package looks for leaked goroutines, which a worker does not
// need.
func init() { conformance.RunWorker() }

func TestConformance(t *testing.T) {
	t.Parallel()
	testConformance(t, "", nil)
}

func TestConformanceFair(t *testing.T) {
	t.Parallel()
	testConformance(t, "?fair=true", drivertest.OrderGroups("faults", "closing", "expiry"))
}

func TestConformanceFairFIFO(t *testing.T) {
	t.Parallel()
	testConformance(t, "?fair=true&order=fifo", drivertest.OrderGroups())
}

// testConformance runs the suite with exactly the rights of docs/backends, but
// for all names, and with pubsub, which counts waiters.
func testConformance(t *testing.T, parameters string, groups []string) {
	rows := []string{"`Read`, `Write`", "`Permits`", "`Inspect`, `ForceUnlock`", "`List`", "`Latch`", "migration from it", "migration to it", "migration back"}
	if parameters != "" {
		rows = append(rows, "`fair=true`")
	}
	words := strings.Fields(drivertest.Recipe(t, "**Redis, `redisson://`**"))
	for _, row := range rows {
		words = append(words, drivertest.RecipeRow(t, row)...)
	}
	password := testenv.Password()
	rights := []string{"--user", "locker", "on", ">" + password}
	for _, right := range words[slices.Index(words, "resetkeys"):] {
		if i := strings.Index(right, "{lk:*"); i > 0 {
			rights = append(rights, right[:i]+"?*") // for names with a brace
		}
		rights = append(rights, strings.ReplaceAll(right, "lk:*", "?*")) // for any name, in addition to the other patterns
	}
	server, user := testenv.Redis(t, append(rights, "+pubsub")...), "locker:"+password+"@"
	backend := &conformance.Backend{
		URL: "redisson://" + user + server.Addr + parameters,
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			link, addr := testenv.Wire(tb, server.Addr)
			d, _, err := driver.Open(tb.Context(), "redisson://"+user+addr+parameters)
			if err != nil {
				tb.Fatal(err)
			}
			return d, conformance.LinkOver(link)
		},
		Expire:     func(_ testing.TB, name string) { server.Do("DEL", name, "{"+name+"}:timeout") },
		ExpireHold: func(_ testing.TB, name, hold string) { endHold(server, name, hold) },
		Ping:       server.Ping,
		Freeze:     func(testing.TB) { server.Freeze() },
		Thaw:       func(testing.TB) { server.Thaw() },
		Restart:    func(testing.TB) { server.Restart() },
		Refuse:     func(testing.TB) { server.Refuse() },
		Allow:      func(testing.TB) { server.Allow() },
		Left: func(testing.TB) []string {
			return slices.DeleteFunc(server.Left(), func(one string) bool {
				_, key, _ := strings.Cut(one, " ")
				kept := func(prefix string) bool { return strings.HasPrefix(key, prefix) }
				return slices.ContainsFunc([]string{"dsync_fence:", "redisson_lock_token:", "dsync_latch"}, kept) ||
					strings.HasPrefix(one, "string conformance/") || // a count of permits
					strings.HasPrefix(one, "zset ") && server.Do("ZCOUNT", key, strconv.FormatInt(time.Now().UnixMilli(), 10), "+inf") == int64(0) // of ends of permits, which have passed
			})
		},
	}
	conformance.Run(t, conformance.Harness{
		Backend: func(testing.TB) *conformance.Backend { return backend },
		TTL:     time.Second,
		Groups:  groups,
	})
}

// endHold ends a hold in any mode. For a hold of permits it removes all members
// that begin with the hold's hash.
func endHold(server *testenv.RedisServer, name, hold string) {
	if server.Do("TYPE", name) != "string" {
		server.Do("HDEL", name, hold, hold+":write", hold+":read")
		return
	}
	sum, ends := sha1.Sum([]byte(hold)), "{"+name+"}:timeout"
	for _, member := range server.Do("ZRANGE", ends, "0", "-1").([]any) {
		if strings.HasPrefix(member.(string), string(sum[:12])) {
			server.Do("ZREM", ends, member.(string))
			server.Do("INCR", name)
		}
	}
}
