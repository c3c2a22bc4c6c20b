package interop

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

// player acquires and releases a lock and returns the times by the clock of the
// machine.
type player interface {
	begin(tb testing.TB) (granted func() time.Time)
	unlock(tb testing.TB) (begun time.Time)
}

type javaPlayer struct{ thread *thread }

func (p javaPlayer) begin(tb testing.TB) func() time.Time {
	c := p.thread.begin("lockAt")
	return func() time.Time { return instant(tb, c.ok(tb)) }
}

func (p javaPlayer) unlock(tb testing.TB) time.Time { return instant(tb, p.thread.do(tb, "unlockAt")) }

func instant(tb testing.TB, text string) time.Time {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return time.Unix(0, n)
}

type goPlayer struct {
	client dsync.Locker
	name   string
	wait   *goWait
}

func (p *goPlayer) begin(tb testing.TB) func() time.Time {
	p.wait = lockLater(p.client, p.name)
	return func() time.Time {
		p.wait.granted(tb)
		return p.wait.at
	}
}

func (p *goPlayer) unlock(tb testing.TB) time.Time {
	at := time.Now()
	unlock(tb, p.wait.lease)
	return at
}

// BenchmarkHandOver measures the median time from an unlock until a waiting
// client has acquired the lock.
func BenchmarkHandOver(b *testing.B) {
	version := agent.Versions(agent.New)[0]
	bed := &bed{version: version, mode: "single", java: startJava(b, version)}
	server := testenv.Redis(b)
	bed.addrs, bed.node = []string{server.Addr}, func(string) *testenv.RedisServer { return server }
	for _, kind := range []string{"plain", "fair", "read to write", "write to read"} {
		parameters := ""
		if kind == "fair" {
			parameters = "&fair=true"
		}
		name := fresh("bench")
		first, last, between := strings.Cut(kind, " to ")
		if !between {
			last = kind
		}
		javaOf := func(kind string) player {
			return javaPlayer{bed.java.open(b, "single", bed.addrs, watchdog).thread("player", kind, name)}
		}
		goOf := func(kind string) player {
			locker := dsync.Locker(bed.client(b, parameters))
			switch kind {
			case "read":
				locker = dsync.With(locker, dsync.Read())
			case "write":
				locker = dsync.With(locker, dsync.Write())
			}
			return &goPlayer{client: locker, name: name}
		}
		players := map[string][2]player{
			"java to java": {javaOf(first), javaOf(last)}, "go to java": {goOf(first), javaOf(last)},
			"java to go": {javaOf(first), goOf(last)}, "go to go": {goOf(first), goOf(last)},
		}
		for _, direction := range []string{"java to java", "go to java", "java to go", "go to go"} {
			from, to := players[direction][0], players[direction][1]
			b.Run(kind+"/"+direction, func(b *testing.B) { handOver(b, bed, kind, name, from, to) })
		}
	}
}

func handOver(b *testing.B, bed *bed, kind, name string, from, to player) {
	var all []time.Duration
	for b.Loop() {
		from.begin(b)()
		granted := to.begin(b)
		switch kind {
		case "fair":
			bed.queued(b, name, 1)
		case "plain":
			bed.subscribed(b, channelOf(name), 1)
		default:
			bed.subscribed(b, readWriteChannel(name), 1)
		}
		time.Sleep(20 * time.Millisecond) // until the waiter has subscribed; a Java reader misses an earlier message
		begun := from.unlock(b)
		all = append(all, granted().Sub(begun))
		to.unlock(b)
		bed.free(b, name)
		testenv.Eventually(b, func() bool { return bed.node(name).SubscriberCount(readWriteChannel(name)) == 0 }, "nobody listens for "+name)
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs/median")
	b.ReportMetric(0, "ns/op")
}
