package redisson

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

var (
	_ move.Unsealer = (*Driver)(nil)
	_ move.Unmarker = (*Driver)(nil)
)

// Loosen implements move.Unsealer. The id is a field beside that of the seal.
func (d *Driver) Loosen(ctx context.Context, name, id string, floor uint64) error {
	if floor > maxFloor {
		return fmt.Errorf("floor %d of the tokens is above what the server counts to: %w", floor, errors.ErrUnsupported)
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
	done, err := d.run(ctx, name, c)
	if err == nil && done == 0 {
		return driver.ErrNotHeld
	}
	return err
}

// Unmark implements move.Unmarker. The tokens stay above the floor.
func (d *Driver) Unmark(ctx context.Context, held driver.Lease) error {
	l := held.(*lease)
	l.markKnown = false
	name := l.request.Name
	done, err := d.change(ctx, l, unmarkScript.Call([]string{name, prefixName(markPrefix, name)}, fieldOf(l.request.Mode, l.request.Hold)))
	if err == nil && done == 0 {
		return driver.ErrNotHeld
	}
	return err
}
