package redisson

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Close implements driver.Driver. It returns nil when nothing is left on the
// server, or when the remaining holds have expired, and ErrUnknown if ctx ends
// earlier. A place in the queue of a fair lock has no TTL. A proxy that delays
// requests for more than two seconds after the end of their connection may
// still leave a hold behind until the hold's TTL has passed.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	waiting := d.life.AwaitCalls(ctx)
	if waiting > 0 && d.dialer != nil {
		d.dialer.Break() // ends the calls that are waiting for an answer
	}
	d.releaseAll(ctx)
	if d.ghosts.Left() > 0 && d.dialer != nil {
		d.dialer.Break() // nothing more is sent over the connections of unanswered requests
		d.severed.Store(d.life.Now())
	}
	ghosts := d.ghosts.Finish(ctx)
	d.topics.Close()
	d.life.End()
	d.life.Finish(ctx, func() { // when the requests are answered or fail
		if d.dialer != nil {
			d.closeClient(ctx)
		}
	})
	if waiting+ghosts == 0 {
		return nil
	}
	err := fmt.Errorf("%w: %d calls and %d holds were left behind", driver.ErrUnknown, waiting, ghosts)
	if ended := ctx.Err(); ended != nil {
		err = fmt.Errorf("%w: %w", err, ended)
	}
	return err
}

// closeClient closes a client that the driver owns. Its Close waits for
// answers, but not for connections that it is about to make.
func (d *Driver) closeClient(ctx context.Context) {
	defer context.AfterFunc(ctx, d.dialer.End)()
	d.client.Close()
	d.dialer.End()
	d.dialer.Wait()
}

// releaseAll ends the holds of all leases in few requests and leaves failures
// to the cleaner.
func (d *Driver) releaseAll(ctx context.Context) {
	for some := range slices.Chunk(d.life.TakeAll(), renewRuns) {
		ghosts := make([]*ghost, len(some))
		for i, l := range some {
			l.Mu.Lock()
			l.Phase, ghosts[i] = redisdriver.Over, l.ghost()
			l.Mu.Unlock()
		}
		for _, g := range d.releaseGhosts(ctx, ghosts) {
			d.ghosts.Add(g)
		}
	}
}

// releaseCall is the release of a hold, or of several holds of one fair lock,
// for evalAll.
func (d *Driver) releaseCall(r *driver.Request, holds ...string) redisdriver.Call {
	return d.scriptsOf(r.Mode).release.Call(d.releaseKeys(r, nil), d.releaseArgs(r, nil, holds...)...)
}

func (d *Driver) releaseKeys(r *driver.Request, keys []string) []string {
	switch r.Mode {
	case driver.Permit:
		return permitKeys(r.Name, keys)
	case driver.Exclusive:
		return d.fairKeys(r.Name, append(keys, r.Name))
	}
	return readWriteKeys(r, false, append(keys, r.Name))
}

func (d *Driver) releaseArgs(r *driver.Request, args []string, holds ...string) []string {
	switch {
	case r.Mode == driver.Permit:
		return d.tellPermitsArgs(r.Name, append(permitArgs(r.Hold, r.Permits, args), d.countText()))
	case r.Mode != driver.Exclusive:
		return d.readWriteReleaseArgs(r, args)
	case d.options.Fair:
		return append(d.tellArgs(r.Name, args), holds...)
	}
	return append(append(args, r.Hold, prefixName(channelPrefix, r.Name), d.releaseMessage()), d.checked.words...)
}

const (
	// beyond this number, the hold that ends soonest is left to expire, and no
	// request gets a place in a queue
	maxGhosts = 10_000
	maxBatch  = 64 // ghosts in one request
	maxCleans = 4  // concurrent requests, so that one slow node of a cluster delays few others
	cleanFor  = 2 * time.Second
	// how long a ghost is remembered after its end while the server does not
	// answer
	outOfReach = time.Minute
	// how long a request may still be on its way, after its connection was
	// closed, to a server that answers other requests
	onItsWay = 2 * time.Second
)

// ghost is an unwanted hold that may be left on the server, or may still appear
// there. If it is absent, the request that creates it may still be on its way.
// So the cleaner repeats its request until it finds the hold or the hold would
// have expired. For a place in a queue, it repeats the request until the server
// answers. After Close has closed all connections, two answers that the hold is
// absent, to requests some time apart, are final. Only the time between answers
// counts, because a server that was frozen may execute the request later.
type ghost struct {
	cleaner.Ghost
	request *driver.Request
	until   int64 // when the hold expires
	// the server has answered the request for the hold, so a hold that is not
	// found is gone permanently
	granted bool
	// there may be a place in the queue of a fair lock, which does not end by
	// itself
	place bool
	// order of the request that may have created the hold; a later request of
	// the same order sees the final state
	order  uint64
	lease  *lease        // the lease of a hold whose Release failed
	gone   chan struct{} // closed when the ghost is gone; nil if no caller waits
	absent int64         // when the hold was first found to be absent
	// when the first request after Driver.severed that did not find the hold
	// was sent
	looked int64
}

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

// soonestOver returns the index of the hold that ends soonest. A place in a
// queue is never left behind.
func soonestOver(ghosts []*ghost) int {
	soonest := -1
	for i, g := range ghosts {
		if !g.place && (soonest < 0 || g.until < ghosts[soonest].until) {
			soonest = i
		}
	}
	return soonest
}

// releaseGhosts requests the release of each ghost and returns the ghosts whose
// holds may still appear.
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
	order, sent := d.order(), d.life.Now()
	results, _ := d.evalAll(ctx, d.client, calls, 0)
	if order != d.order() {
		order = unordered
	}
	now := d.life.Now()
	for i, group := range groups {
		told, err := answersOf(results[i], len(group))
		for j, g := range group {
			told, err := told[j], err
			if d.overwritten(ctx, g.request, err) {
				told, err = -1, nil
			}
			switch {
			case err == nil && (g.isGone(told, order, now) || g.vanished(d.severed.Load(), sent)), err != nil && g.forgotten(err, now):
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

// groups combines the ghosts that one run of the release script may release.
// For a fair lock these are several ghosts, the youngest first, because they
// are further back in the queue.
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

// answersOf reads the release script's answer for n holds.
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

// forgotten takes the error of a request and reports whether the cleaner gives
// up the ghost and leaves it to expire.
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

// vanished reports whether requests for the hold can no longer arrive. This is
// true if all connections were closed and a later request did not find the
// hold.
func (g *ghost) vanished(severed, sent int64) bool {
	switch {
	case severed == 0, sent <= severed:
		return false
	case g.looked == 0:
		g.looked = sent
	}
	return sent-g.looked >= int64(onItsWay)
}

// isGone takes the answer to a request of some order and reports whether the
// ghost is gone permanently.
func (g *ghost) isGone(told int64, order uint64, now int64) bool {
	if g.lease != nil {
		g.lease.cleaned(told)
	}
	if told >= 0 || g.granted || order != unordered && order == g.order {
		return true
	}
	if g.absent == 0 {
		g.absent = now
	}
	// A server that was frozen may not have read the request for the place yet,
	// but will read it at about the same time as this request.
	return now > g.until && (!g.place || now > g.absent+int64(late))
}
