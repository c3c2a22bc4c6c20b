package redisson

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCombinedRequestsKeepTokensRising has three clients want many locks all
// the time, so that grants and releases go together. The answers to such
// requests are sometimes lost, so the outcome of all their ops is unknown.
func TestCombinedRequestsKeepTokensRising(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	link, addr := testenv.Wire(t, s.Addr)
	names := make([]string, 24)
	for i := range names {
		names[i] = fmt.Sprint("combined", i)
	}
	l := &load{history: history.New(), names: names, grants: countsOf(names)}
	for i, addr := range []string{s.Addr, s.Addr, addr} {
		c := clientOf(t, fmt.Sprintf("redisson://%s/?ttl=%v", addr, loadTTL))
		for _, name := range names {
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
			lost := link.LoseReply(batchScript.SHA)
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
