package migrate

import (
	"context"
	"fmt"

	"github.com/go-dsync/dsync/driver"
)

// tokensName is locked for a moment on each backend, to see which tokens a name gets that was never locked.
const tokensName = reserved + "tokens"

// floorSlack is far more than the tokens of a backend rise during a migration: nine years for tokens that are microseconds.
const floorSlack = 1 << 48

// Tokens are the tokens that the two backends give to a name that has moved by no seal.
type Tokens struct {
	From, To uint64 // with the floors of the two
	Floor    uint64 // a floor for to with which its tokens are above those of from until long after now
}

// Rise reports whether tokens rise also for names that nobody locks before the programs use to alone, for years to come: two clocks that
// differ by chance are not enough.
func (t Tokens) Rise() bool { return t.To > t.From+floorSlack/2 }

// Tokens locks a reserved name for a moment on each backend, and compares the tokens. It returns zero Tokens if a backend has none, or
// does not permit that name.
func (d *Driver) Tokens(ctx context.Context) (t Tokens, err error) {
	if d.from.info.Fencing == driver.None || d.to.info.Fencing == driver.None {
		return t, nil
	}
	for b, token := range map[*backend]*uint64{d.from: &t.From, d.to: &t.To} {
		l, err := b.Acquire(ctx, d.ownRequest(tokensName))
		if err != nil {
			return Tokens{}, d.permitted(ctx, fmt.Errorf("%s backend: %w", b.role, err))
		}
		first, n := driver.Tokens(l, b.floor)
		*token = first + uint64(max(n, 1)) - 1
		letGo(l)
	}
	bare := t.To - d.to.floor
	t.Floor = t.From - min(t.From, bare) + floorSlack
	return t, nil
}
