package redisson

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

const (
	maxGhosts  = 10_000 // of more, the hold that ends soonest is left to its TTL; and nobody gets a place in a queue
	maxBatch   = 64     // ghosts in one request
	maxCleans  = 4      // requests at once, so that one node of a cluster holds up few others
	cleanFor   = 2 * time.Second
	outOfReach = time.Minute     // how long after its end a ghost is remembered while the server does not answer
	onItsWay   = 2 * time.Second // how long a request may be on its way to a server that answers others, once its connection is closed
)

// ghost is a hold that may be left on the server, or may come to be there, and that nobody wants.
//
// If a hold is absent, the request that makes it may still be on its way. So
// the cleaner asks again until the hold is found, or would be over. For a place
// in a queue it asks until the server has answered, however long that takes.
// Close does not wait for so long: it closes all connections, and then two
// answers that the hold is absent, to requests some time apart, are the end.
// Only the answers of the server make time pass, since a server that stands
// still may carry the request out later.
type ghost struct {
	cleaner.Ghost
	request *driver.Request
	until   int64         // when the hold is over by itself
	granted bool          // the server has answered the request for the hold, so a hold that is not found is gone for good
	place   bool          // there may be a place in the queue of a fair lock, which does not end by itself
	order   uint64        // of the request that may have made the hold: a later request of this order sees the final state
	lease   *lease        // of a hold whose Release failed
	gone    chan struct{} // closed when the ghost is gone; nil if nobody waits
	absent  int64         // when the hold was not found for the first time
	looked  int64         // when the first request after Driver.severed was sent that did not find the hold
}

// newCleaner returns the cleaner that releases ghosts. Its Finish also waits for ops whose callers have left, since these may leave ghosts.
func newCleaner(d *Driver) *cleaner.Cleaner[*ghost] {
	return cleaner.New(d.life.Lifecycle, cleaner.Policy[*ghost]{
		Settle: func(ghosts []*ghost) []*ghost {
			ctx, cancel := context.WithTimeout(d.life.Context(), cleanFor)
			defer cancel()
			return d.releaseGhosts(ctx, ghosts)
		},
		Batch: maxBatch, Calls: maxCleans, Max: maxGhosts, Forget: soonestOver,
	})
}

// soonestOver chooses the hold that ends soonest. A place in a queue is never left to its fate.
func soonestOver(ghosts []*ghost) int {
	soonest := -1
	for i, g := range ghosts {
		if !g.place && (soonest < 0 || g.until < ghosts[soonest].until) {
			soonest = i
		}
	}
	return soonest
}

// releaseGhosts asks once for each ghost, and returns the ghosts whose holds may still come.
func (d *Driver) releaseGhosts(ctx context.Context, ghosts []*ghost) (left []*ghost) {
	groups := d.groups(ghosts)
	calls := make([]redisdriver.Call, len(groups))
	for i, group := range groups {
		holds := make([]string, len(group))
		for j, g := range group {
			holds[j] = g.request.Hold
		}
		r := group[0].request
		calls[i] = d.releaseCall(r, holds...)
		if r.Mode == driver.Write {
			calls[i].Keys = append(calls[i].Keys, prefixName(intentPrefix, r.Name))
		}
	}
	order, sent := d.order(), d.now()
	results, _ := d.evalAll(ctx, d.client, calls, 0)
	if order != d.order() {
		order = unordered
	}
	now := d.now()
	for i, group := range groups {
		told, err := answersOf(results[i], len(group))
		for j, g := range group {
			told, err := told[j], err
			if d.overwritten(ctx, g.request, err) {
				told, err = -1, nil
			}
			switch {
			case err == nil && (g.settled(told, order, now) || g.vanished(d.severed.Load(), sent)), err != nil && g.forgotten(err, now):
				if g.gone != nil {
					close(g.gone)
				}
			default:
				left = append(left, g)
			}
		}
	}
	return left
}

// groups puts together the ghosts that one run of the release script may release: several of a fair lock, the youngest first, who are
// further back in the queue.
func (d *Driver) groups(ghosts []*ghost) [][]*ghost {
	var groups [][]*ghost
	if d.options.Fair {
		slices.SortFunc(ghosts, func(x, y *ghost) int {
			a, b := x.request, y.request
			return cmp.Or(cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Name, b.Name), cmp.Compare(len(b.Hold), len(a.Hold)), cmp.Compare(b.Hold, a.Hold))
		})
	}
	for i, g := range ghosts {
		if r := g.request; d.options.Fair && i > 0 && r.Mode == driver.Exclusive && ghosts[i-1].request.Mode == r.Mode && ghosts[i-1].request.Name == r.Name {
			last := len(groups) - 1
			groups[last] = append(groups[last], g)
		} else {
			groups = append(groups, []*ghost{g})
		}
	}
	return groups
}

// answersOf reads the answer of the release script for n holds.
func answersOf(result rueidis.RedisResult, n int) (told []int64, err error) {
	told = make([]int64, n)
	if n == 1 {
		told[0], err = result.ToInt64()
		return told, err
	}
	answers, err := result.AsIntSlice()
	if err == nil && len(answers) != n {
		err = redisdriver.ErrAnswer
	}
	copy(told, answers)
	return told, err
}

// forgotten takes the error of a request and reports whether the ghost is given up, to end by itself.
func (g *ghost) forgotten(err error, now int64) bool {
	refused := false
	if answer, ok := rueidis.IsRedisErr(err); ok {
		why, _ := redisdriver.Refusal(g.request.Name, answer)
		refused = errors.Is(why, fs.ErrPermission)
	}
	switch {
	case g.place:
		return false
	case refused:
		return true
	case g.granted:
		return now > g.until
	}
	return now > g.until+int64(outOfReach)
}

// vanished takes the answer that the hold is absent, to a request that was sent
// at some time after all connections were closed, and reports whether no
// request for the hold can arrive any more.
func (g *ghost) vanished(severed, sent int64) bool {
	switch {
	case severed == 0, sent <= severed:
		return false
	case g.looked == 0:
		g.looked = sent
	}
	return sent-g.looked >= int64(onItsWay)
}

// settled takes the answer to a request of some order and reports whether the ghost is gone for good.
func (g *ghost) settled(told int64, order uint64, now int64) bool {
	if g.lease != nil {
		g.lease.cleaned(told)
	}
	if told >= 0 || g.granted || order != unordered && order == g.order {
		return true
	}
	if g.absent == 0 {
		g.absent = now
	}
	// A server that stood still may not have read the request for the place yet, but will within moments of this one.
	return now > g.until && (!g.place || now > g.absent+int64(late))
}
