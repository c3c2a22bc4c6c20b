package cas

import (
	"sync"
	"time"
)

// sights are the claims that a driver has seen, if the store has no clock.
type sights struct {
	mu   sync.Mutex
	seen map[string]sight // by claim.Beat
	room int              // the number of claims above which old ones are swept out
}

type sight struct {
	first, last time.Time // when the claim arrived in an answer, so its last renewal was earlier
	ttl         time.Duration
}

// unchanged returns how long the driver has seen the claim without a renewal.
func (s *sights) unchanged(c *claim, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, ok := s.seen[c.Beat]
	if !ok {
		s.sweep(now)
		seen = sight{first: now, ttl: c.TTL}
	}
	seen.last = now
	s.seen[c.Beat] = seen
	return now.Sub(seen.first)
}

// sweep forgets claims that were not looked up for twice their TTL. A later
// lookup of such a claim starts a new observation, which takes longer.
func (s *sights) sweep(now time.Time) {
	if len(s.seen) < s.room {
		return
	}
	for beat, seen := range s.seen {
		if now.Sub(seen.last) > 2*seen.ttl {
			delete(s.seen, beat)
		}
	}
	s.room = max(1000, 2*len(s.seen))
}
