package redisson

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// sealField is the field of a sealed lock, and sealOwner the owner that it
// shows to people.
const (
	sealField = "dsync:seal"
	sealOwner = "seal"
)

// maxFloor is far below the first number that Lua cannot represent exactly, and
// above any count that starts at the present time in microseconds.
const maxFloor = 1 << 52

// Seal implements move.Sealer. The seal is a field of the lock (see seal.lua).
func (d *Driver) Seal(ctx context.Context, held driver.Lease) error {
	switch {
	case d.options.AllowEviction:
		return redisdriver.ErrEvicts
	case d.options.Fair: // the waiters in the queue are not notified of a seal
		return fmt.Errorf("a fair lock cannot be sealed: %w", errors.ErrUnsupported)
	}
	l := held.(*lease)
	name := l.request.Name
	last := l.first + uint64(max(l.tokens, 1)) - 1
	args := append([]string{fieldOf(l.request.Mode, l.request.Hold), strconv.FormatUint(last, 10), channelOf(l.request.Mode, name, false)}, d.checked.words...)
	_, err := d.change(ctx, l, sealScript.Call([]string{name}, args...))
	if err == nil || err == driver.ErrNotHeld {
		l.Forget()
		d.life.Remove(l)
	}
	return err
}

// Mark implements move.Marker. The mark is a separate key.
func (d *Driver) Mark(ctx context.Context, held driver.Lease, floor uint64) error {
	if d.options.AllowEviction {
		return redisdriver.ErrEvicts
	}
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens is above the largest number that the server supports: %w", floor, errors.ErrUnsupported)
	}
	l := held.(*lease)
	l.markKnown = false
	name := l.request.Name
	keys := []string{name, prefixName(markPrefix, name)}
	token := d.tokenKey(name)
	if token != "" {
		keys = append(keys, token)
	}
	args := []string{fieldOf(l.request.Mode, l.request.Hold), strconv.FormatUint(floor, 10), d.tokenKind(), holderText(l.request)}
	first, err := d.change(ctx, l, markScript.Call(keys, args...))
	if err == nil && token != "" {
		l.first, l.tokens = uint64(first), 1
	}
	return err
}

// change runs a script that changes the name of l permanently, if l is held. It
// returns the script's answer.
func (d *Driver) change(ctx context.Context, l *lease, c redisdriver.Call) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if !l.IsHeld() {
		return 0, driver.ErrNotHeld
	}
	return d.runScript(ctx, l.request.Name, c)
}

// runScript runs a script that changes something permanently, and returns its
// answer, or ErrNotHeld if the answer is 0, because there is nothing to change.
func (d *Driver) runScript(ctx context.Context, name string, c redisdriver.Call) (int64, error) {
	answer, lacking, err := d.runReplicated(ctx, name, c)
	switch {
	case lacking != nil:
		// not ErrUnavailable, because the script may have been executed
		return 0, fmt.Errorf("%w: %v", driver.ErrUnknown, lacking)
	case err == nil && answer == 0:
		err = driver.ErrNotHeld
	}
	return answer, err
}

// runReplicated is like runScript, but returns a different error if the server
// has made the change and too few replicas have confirmed it.
func (d *Driver) runReplicated(ctx context.Context, name string, c redisdriver.Call) (answer int64, lacking, err error) {
	result, acks := d.evalReplicated(ctx, c)
	answer, err = result.ToInt64()
	if err != nil {
		return 0, nil, redisdriver.Explain(ctx, name, err)
	}
	if answer != 0 && acks < d.options.WaitReplicas {
		lacking = d.notReplicated(acks)
	}
	return answer, lacking, nil
}

// Sealed implements move.Sealer.
func (d *Driver) Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error) {
	if err := d.admin(ctx, name); err != nil {
		return 0, false, err
	}
	text, err := d.do(ctx, d.client.B().Hget().Key(name).Field(sealField).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, redisdriver.Explain(ctx, name, err)
	}
	if last, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, false, redisdriver.ErrAnswer
	}
	return last, true, nil
}

// Marked implements move.Marker.
func (d *Driver) Marked(ctx context.Context, held driver.Lease) (bool, error) {
	if d.options.AllowEviction {
		return false, redisdriver.ErrEvicts
	}
	l := held.(*lease)
	if l.markKnown {
		return l.marked, nil
	}
	d.marks.Store(true) // from now on grants report whether the name is marked
	name := l.request.Name
	n, err := d.do(ctx, d.client.B().Exists().Key(prefixName(markPrefix, name)).Build()).ToInt64()
	return n == 1, redisdriver.Explain(ctx, name, err)
}

// Loosen implements move.Unsealer. The id is in a field next to the seal's
// field.
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens is above the largest number that the server supports: %w", floor, errors.ErrUnsupported)
	}
	keys, args := []string{name}, []string{id, strconv.FormatUint(floor, 10), d.tokenKind()}
	if token := d.tokenKey(name); token != "" {
		keys = append(keys, token)
	} else if floor > 0 {
		return fmt.Errorf("there are no tokens to raise: %w", errors.ErrUnsupported)
	}
	return d.changeSeal(ctx, name, loosenScript.Call(keys, args...))
}

// Unseal implements move.Unsealer.
func (d *Driver) Unseal(ctx context.Context, name, id string) error {
	args := append([]string{id, prefixName(channelPrefix, name), prefixName(readWritePrefix, name)}, d.checked.words...)
	return d.changeSeal(ctx, name, unsealScript.Call([]string{name}, args...))
}

// changeSeal runs a script that changes the seal of a name, if there is one.
func (d *Driver) changeSeal(ctx context.Context, name string, c redisdriver.Call) error {
	if err := d.admin(ctx, name); err != nil {
		return err
	}
	_, err := d.runScript(ctx, name, c)
	return err
}

// Unmark implements move.Unmarker. The tokens stay above the floor.
func (d *Driver) Unmark(ctx context.Context, held driver.Lease) error {
	l := held.(*lease)
	l.markKnown = false
	name := l.request.Name
	_, err := d.change(ctx, l, unmarkScript.Call([]string{name, prefixName(markPrefix, name)}, fieldOf(l.request.Mode, l.request.Hold)))
	return err
}
