package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/cleaner"
)

// Close implements driver.Driver. The locks of a session end with its lease, in
// one request.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	waiting := d.life.AwaitCalls(ctx)
	all := d.sessions.All()
	d.endAll(nil)
	for _, s := range all {
		<-s.Buried() // so that its lease is among the ghosts
	}
	d.spare.close()
	ghosts := d.ghosts.Finish(ctx)
	d.life.End()
	d.life.Wait() // all requests end when d.life.Context() ends
	err := error(nil)
	if waiting+ghosts > 0 {
		err = fmt.Errorf("%w: %d calls and %d leases or keys were left behind: %w", driver.ErrUnknown, waiting, ghosts, ctx.Err())
	}
	if d.closeClient != nil {
		d.closeClient()
	}
	return err
}

const (
	maxCleaning = 16 // requests at a time
	retireAfter = 2 * time.Second
)

// ghost is an unwanted key or lease that may be on the server or may appear
// there.
//
// A revoked lease is gone permanently, with the keys attached to it and with
// keys whose request is still on its way. An absent key may still appear if the
// request that puts it was not answered. The cleaner then tries again at
// growing intervals. If the key belongs to a session, the session takes no more
// locks, so that its lease is revoked as soon as its last lock ends. The number
// of ghosts is bounded by the requests that fail within a TTL, because no
// session outlives a TTL without an answer.
type ghost struct {
	cleaner.Ghost
	key     string // "" if the lease must be revoked
	carrier *carrier
	// session of the key; nil if its lease is being revoked too, or the ghost
	// is definite
	session  *session
	definite bool // the request that made the key was answered, so a key that is absent is gone
	sealing  bool // the key may have become a seal, which must stay
}

// newCleaner returns the cleaner that ends ghosts.
func newCleaner(d *Driver) *cleaner.Cleaner[*ghost] {
	settle := func(ghosts []*ghost) []*ghost { return slices.DeleteFunc(ghosts, d.endGhost) }
	return cleaner.New(d.life, cleaner.Policy[*ghost]{Settle: settle, Batch: 1, Calls: maxCleaning})
}

// refused reports whether the server refused a request with err and would
// refuse it again.
func refused(ctx context.Context, err error) bool {
	err, doubt := fault(ctx, err)
	return !doubt && !errors.Is(err, driver.ErrUnavailable)
}

// endGhost sends one request and reports whether the ghost is gone permanently.
func (d *Driver) endGhost(g *ghost) bool {
	// A busy server gets more time with each attempt, because it continues to
	// work on a request that was given up.
	ctx, cancel := d.background(min(max(attemptFor, time.Since(g.Added)), longestGrant))
	defer cancel()
	if g.carrier.gone.Load() {
		return true
	}
	if g.key == "" {
		return d.revoke(ctx, g.carrier) == nil || d.now() > g.carrier.lasts.Load()+int64(late)
	}
	if g.session != nil && g.session.IsDead() {
		return true // the lease is another ghost
	}
	removed, err := d.removeKey(ctx, g.key, g.sealing)
	if err == nil && (removed || g.definite) {
		return true
	}
	if g.session != nil && time.Since(g.Added) > retireAfter && (!g.definite || refused(ctx, err)) {
		g.session.Retire()
	}
	return false
}
