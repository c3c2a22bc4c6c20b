package etcd

import (
	"slices"
	"time"

	"github.com/go-dsync/dsync/internal/cleaner"
)

const (
	maxCleaning = 16 // requests at a time
	retireAfter = 2 * time.Second
)

// ghost is a key or a lease that may be left at the server, or come to be there, and that nobody wants.
//
// A revoked lease is gone for good, and so are keys that hang on it, also those whose request is still on its way. A key that is
// absent may yet come, if the request that puts it was not answered: then it is asked for again, ever more seldom; and if it hangs on
// a session, that takes no more locks, so that its lease can be revoked as soon as the last one ends. Ghosts are bounded by the
// requests that fail within a TTL: no session outlives that without an answer.
type ghost struct {
	cleaner.Ghost
	key      string // "" if the lease is to be revoked
	revoke   bool
	carrier  *carrier
	session  *session // of a key; nil if its lease is on the way to be revoked, or it is definite
	definite bool     // the request that made the key was answered: if it is absent, it is gone
	sealing  bool     // the key may have become a seal, and then it is to stay
}

// newCleaner returns what ends ghosts.
func newCleaner(d *Driver) *cleaner.Cleaner[*ghost] {
	settle := func(ghosts []*ghost) []*ghost { return slices.DeleteFunc(ghosts, d.exorcise) }
	return cleaner.New(d.life, cleaner.Policy[*ghost]{Settle: settle, Batch: 1, Calls: maxCleaning})
}

// exorcise asks once, and reports whether the ghost is gone for good.
func (d *Driver) exorcise(g *ghost) bool {
	ctx, cancel := d.background(attemptFor)
	defer cancel()
	if g.carrier.gone.Load() {
		return true
	}
	if g.revoke {
		return d.revoke(ctx, g.carrier) == nil || d.now() > g.carrier.lasts.Load()+int64(late)
	}
	if g.session != nil && g.session.isDead() {
		return true // the lease is a ghost of its own
	}
	removed, err := d.removeKey(ctx, g.key, g.sealing)
	if err == nil && (removed || g.definite) {
		return true
	}
	if !g.definite && time.Since(g.Added) > retireAfter {
		g.session.retire()
	}
	return false
}
