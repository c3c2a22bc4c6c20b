package redisson

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCombinedRequestsKeepTokensRising has three clients want many locks all the time, so that grants and releases go together. The
// answers to such requests are lost now and then, and so it is unknown for all in them what became of them.
func TestCombinedRequestsKeepTokensRising(t *testing.T) {
	t.Run("plain", func(t *testing.T) { combine(t, "", batchScript, 1) })
	t.Run("fair", func(t *testing.T) { combine(t, "&fair=true", fairBatchScript, 2) }) // with releases that hand over
}

// combine has so many callers of each client want each of the locks.
func combine(t *testing.T, parameters string, batch *redisdriver.Script, callers int) {
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	names := make([]string, 24/callers)
	for i := range names {
		names[i] = fmt.Sprint("combined", i)
	}
	l := &load{history: history.New(), names: names, grants: countsOf(names)}
	for i, addr := range []string{s.Addr, s.Addr, addr} {
		c := clientOf(t, fmt.Sprintf("redisson://%s/?ttl=%v%s", addr, loadTTL, parameters))
		for _, name := range slices.Repeat(names, callers) {
			l.wg.Go(func() {
				for !l.ended.Load() {
					l.use(t, c, fmt.Sprint("client", i), name)
				}
			})
		}
	}
	t.Cleanup(l.end)
	for range 3 {
		l.disturb(t, "lost answer to a combined request", func() {
			lost := link.LoseReply(batch.SHA)
			select {
			case <-lost:
			case <-time.After(hangGuard):
				t.Fatal("no request was combined")
			}
			link.Heal()
		})
	}
	l.judge(t, 0)
}
