package stress

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// permitLimit is the number of permits. Each call requests at most one permit
// fewer.
const permitLimit = 4

// tally counts the permits that were held at any time, as reported by their
// holders. The count is independent of workers and servers.
type tally struct {
	began time.Time

	mu    sync.Mutex
	stays []*stay
	last  string // the last holder to report permits
}

// stay is a number of permits that a holder reported.
type stay struct {
	n int
	// to is the last deadline that the holder reported, or the earlier moment
	// at which it reported the end
	from, to time.Duration
}

func (t *tally) now() time.Duration { return time.Since(t.began) }

// told records that the holder who has n permits until a given time, according
// to its report. It returns the holder's stay, which later calls pass as s.
// With n = 0, told records the end of s.
func (t *tally) told(s *stay, n int, until time.Duration, who string) *stay {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > 0 {
		t.last = who
	}
	switch {
	case s == nil && n > 0:
		s = &stay{n, now, until}
		t.stays = append(t.stays, s)
	case n > 0:
		s.to = until
	case s != nil:
		s.to = min(s.to, now)
		s = nil
	}
	return s
}

func (t *tally) holder() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

func (t *tally) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.stays)
}

// most returns the largest number of permits held at one time, after shortening
// each stay by earlier.
func (t *tally) most(earlier time.Duration) (most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.SortedFunc(slices.Values(t.stays), func(a, b *stay) int { return int(a.from - b.from) })
	var held []*stay
	for _, s := range all {
		held = slices.DeleteFunc(append(held, s), func(h *stay) bool { return h.to-earlier <= s.from })
		sum := 0
		for _, h := range held {
			sum += h.n
		}
		most = max(most, sum)
	}
	return most
}

// permits acquires some of the permits, sometimes for as long as a few renewals
// take.
func (u *user) permits() {
	a := history.Attempt{Name: u.Permits, Mode: driver.Permit, Permits: 1 + u.random.IntN(permitLimit-1), Limit: permitLimit}
	wait, hold := patience, u.upTo(4*time.Millisecond)
	switch n := u.random.IntN(60); {
	case n < 3:
		hold = TTL/4 + u.upTo(TTL)
	case n < 15:
		wait = u.upTo(300 * time.Millisecond)
	case n < 20:
		wait = 0
	}
	if err := u.use(context.Background(), a, wait, hold); u.Forgets && errors.Is(err, dsync.ErrLimit) {
		u.restoreLimit()
	}
	time.Sleep(u.upTo(u.Pace))
}

// restoreLimit sets the limit, as an operator would after the backend has lost
// some of the permits.
func (u *user) restoreLimit() {
	ctx, cancel := context.WithTimeout(context.Background(), TTL)
	defer cancel()
	done := u.history.SettingLimit(u.Permits, permitLimit)
	done(u.drivers[0].(driver.Limiter).SetLimit(ctx, u.Permits, permitLimit))
}

// stay holds permits and reports them to the tally. Their end is a time on the
// clock of the resource that is not after the deadline of the lease.
func (u *user) stay(l *dsync.Lease, op *history.Op, n int, d time.Duration) {
	defer u.store.left()
	tick := time.NewTicker(TTL / 10)
	defer tick.Stop()
	work := time.NewTimer(d)
	defer work.Stop()
	for {
		until := u.store.now() + time.Until(l.Deadline())
		if op.Check() != nil {
			return
		}
		u.store.holds(n, until, u.label)
		select {
		case <-tick.C:
		case <-work.C:
			return
		case <-l.Done():
			op.Lost()
			return
		}
	}
}
