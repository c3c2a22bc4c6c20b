package redisson

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

// evalReplicated runs a script where replicas have to confirm it, and returns how many did.
func (d *Driver) evalReplicated(ctx context.Context, c call) (rueidis.RedisResult, int) {
	node, err := d.nodeOf(ctx, c.keys[0])
	if err != nil {
		return rueidis.NewErrorResult(err), 0
	}
	results, acks := d.evalAll(ctx, node, []call{c}, d.options.WaitReplicas)
	if err := results[0].Error(); err != nil && d.cluster {
		d.nodes.expire()
	}
	return results[0], acks
}

// nodeOf returns the client for scripts on a key. In a cluster, where replicas have to confirm, the client as a whole will not do: it
// follows a redirection of the script, but sends WAIT to a node that has written nothing, where WAIT succeeds.
func (d *Driver) nodeOf(ctx context.Context, key string) (rueidis.Client, error) {
	if !d.cluster || d.options.WaitReplicas == 0 {
		return d.client, nil
	}
	return d.nodes.client(ctx, slotOf(key))
}

// undo gives back a grant that too few replicas confirmed.
func (d *Driver) undo(ctx context.Context, l *lease, acks int) error {
	err := d.notReplicated(acks)
	if releaseErr := l.Release(ctx); releaseErr != nil && !errors.Is(releaseErr, driver.ErrNotHeld) {
		return fmt.Errorf("%w; %w", err, releaseErr)
	}
	return err
}

func (d *Driver) notReplicated(acks int) error {
	return fmt.Errorf("%w: %d of %d confirmed within %v", ErrNotReplicated, acks, d.options.WaitReplicas, d.options.WaitLimit)
}
