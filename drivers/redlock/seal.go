package redlock

import (
	"context"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Single is a driver.Driver on one Redis server, for the plain string lock that
// many programs use. It is Redlock on one node, and its names can be moved to
// another backend (drivers/migrate).
type Single struct{ *Driver }

var (
	_ move.Sealer   = (*Single)(nil)
	_ move.Unsealer = (*Single)(nil)
)

// NewSingle returns a Single, like New for several nodes.
func NewSingle(node rueidis.ClientOption, o *Options) (*Single, error) {
	d, err := newDriver([]rueidis.ClientOption{node}, o)
	if err != nil {
		return nil, err
	}
	return &Single{d}, nil
}

// sealValue is the value of a sealed lock. After a Loosen it is the prefix of
// the value.
const sealValue = "dsync:seal"

func isSeal(value string) bool { return strings.HasPrefix(value, sealValue) }

// loosened is the value of a seal after a Loosen.
func loosened(id string) string { return sealValue + ":" + id }

// isSealed reports whether a server refused a lock because of its seal.
func isSealed(err error) bool {
	answer, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(answer.Error(), "SEALED ")
}

// single reports whether there is only one node. On a single node a script
// acquires the lock, because it can report a seal.
func (d *Driver) single() bool { return len(d.nodes) == 1 }

// Seal implements move.Sealer. The seal is a different value of the lock, so a
// deletion that compares the value does not remove it.
func (d *Single) Seal(ctx context.Context, held driver.Lease) error {
	if d.options.AllowEviction {
		return redisdriver.ErrEvicts
	}
	l := held.(*lease)
	if !l.IsHeld() {
		return driver.ErrNotHeld
	}
	name := l.request.Name
	err := d.change(ctx, sealScript, name, l.value, sealValue, channel(name))
	if err == nil || err == driver.ErrNotHeld {
		l.Forget()
		d.life.Remove(l)
	}
	return err
}

// Sealed implements move.Sealer. There are no tokens.
func (d *Single) Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	if err := d.life.Enter(); err != nil {
		return 0, false, err
	}
	defer d.life.Leave()
	value, _, err := d.holder(ctx, name)
	return 0, err == nil && isSeal(value), err
}

// Loosen implements move.Unsealer. There are no tokens to raise.
func (d *Single) Loosen(ctx context.Context, name, id string, _ uint64) error {
	return d.change(ctx, loosenScript, name, sealValue, loosened(id))
}

// Unseal implements move.Unsealer.
func (d *Single) Unseal(ctx context.Context, name, id string) error {
	return d.change(ctx, releaseScript, name, loosened(id), channel(name))
}

// change runs a script that returns -1 if the lock does not have the value that
// it changes.
func (d *Single) change(ctx context.Context, script *redisdriver.Script, name string, args ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.life.Enter(); err != nil {
		return err
	}
	defer d.life.Leave()
	answers, err := d.evalMajority(ctx, script, name, args...)
	if err != nil {
		return err
	}
	switch answer, err := answers[0].ToInt64(); {
	case err != nil:
		return redisdriver.ErrAnswer
	case answer < 0:
		return driver.ErrNotHeld
	}
	return nil
}
