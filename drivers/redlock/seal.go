package redlock

import (
	"context"
	_ "embed"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Single is a driver.Driver on one Redis server, for the plain string lock of
// many programs: Redlock on one node, whose names can be moved to another
// backend (drivers/migrate).
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

// sealValue is the value of a sealed lock, and after a Loosen the prefix of the
// value.
const sealValue = "dsync:seal"

func isSeal(value string) bool { return strings.HasPrefix(value, sealValue) }

// loosened is the value of a seal after a Loosen.
func loosened(id string) string { return sealValue + ":" + id }

// isSealed reports whether a server refused a lock because of its seal.
func isSealed(err error) bool {
	answer, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(answer.Error(), "SEALED ")
}

// single reports whether there is only one node. A lock there is acquired by a
// script, which reports a seal.
func (d *Driver) single() bool { return len(d.nodes) == 1 }

var (
	//go:embed seal.lua
	sealText string
	//go:embed loosen.lua
	loosenText string
)

// Seal implements move.Sealer. The seal is another value of the lock, so
// deletions with a comparison do not remove the seal.
func (d *Single) Seal(ctx context.Context, held driver.Lease) error {
	if d.options.AllowEviction {
		return redisdriver.ErrEvicts
	}
	l := held.(*lease)
	if !l.isHeld() {
		return driver.ErrNotHeld
	}
	name := l.request.Name
	done, err := d.run(ctx, sealText, name, l.value, sealValue, channel(name))
	if err != nil {
		return err
	}
	l.Forget()
	d.life.Remove(l)
	if done == 0 {
		return driver.ErrNotHeld
	}
	return nil
}

func (l *lease) isHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase == held
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
	return d.change(ctx, loosenText, name, 1, sealValue, loosened(id))
}

// Unseal implements move.Unsealer.
func (d *Single) Unseal(ctx context.Context, name, id string) error {
	return d.change(ctx, releaseText, name, 0, loosened(id), channel(name))
}

// change runs a script, and returns ErrNotHeld if its answer is below least.
func (d *Single) change(ctx context.Context, script, name string, least int64, args ...string) error {
	answer, err := d.run(ctx, script, name, args...)
	if err == nil && answer < least {
		err = driver.ErrNotHeld
	}
	return err
}

// run runs a script, and returns its answer.
func (d *Single) run(ctx context.Context, script, name string, args ...string) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := d.life.Enter(); err != nil {
		return 0, err
	}
	defer d.life.Leave()
	answers, err := d.ask(ctx, script, name, args...)
	if err != nil {
		return 0, err
	}
	answer, err := answers[0].ToInt64()
	if err != nil {
		return 0, redisdriver.ErrAnswer
	}
	return answer, nil
}
