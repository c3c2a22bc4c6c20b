package redisson

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Close implements driver.Driver. It returns nil when nothing is left on the
// server, or when holds that are left are over by their TTLs. A place in the
// queue of a fair lock has no TTL: while the server does not answer, Close
// waits for ctx. If ctx ends first, Close returns ErrUnknown, and never before.
// A proxy that holds requests back for more than two seconds after the end of
// their connection may still leave a hold behind, until its TTL.
func (d *Driver) Close(ctx context.Context) error {
	if err := d.life.Close(); err != nil {
		return err
	}
	waiting := d.life.AwaitCalls(ctx)
	if waiting > 0 && d.dialer != nil {
		d.dialer.Break() // ends the calls that wait for an answer
	}
	d.releaseAll(ctx)
	if d.ghosts.Left() > 0 && d.dialer != nil {
		d.dialer.Break() // nothing more is sent over the connections of unanswered requests
		d.severed.Store(d.now())
	}
	ghosts := d.ghosts.Finish(ctx)
	d.topics.Close()
	d.sender.end()
	d.life.End()

	finished := make(chan struct{})
	go func() { // ends with the driver's goroutines: when their requests are answered or fail
		d.life.Wait()
		if d.dialer != nil {
			d.closeClient(ctx)
		}
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
	}
	if waiting+ghosts == 0 {
		return nil
	}
	err := fmt.Errorf("%w: %d calls and %d holds were left behind", driver.ErrUnknown, waiting, ghosts)
	if ended := ctx.Err(); ended != nil {
		err = fmt.Errorf("%w: %w", err, ended)
	}
	return err
}

// closeClient closes a client of the driver's own. A client of sentinels or of a cluster may be about to connect, in goroutines
// that its Close does not wait for, and would leave the new connection open; and while a server does not answer, Close waits for the answer.
func (d *Driver) closeClient(ctx context.Context) {
	defer context.AfterFunc(ctx, d.dialer.End)()
	d.client.Close()
	d.dialer.End()
	d.dialer.Wait()
}

// releaseAll ends the holds of all leases in few requests, and leaves failures to the cleaner.
func (d *Driver) releaseAll(ctx context.Context) {
	for some := range slices.Chunk(d.life.TakeAll(), renewRuns) {
		ghosts := make([]*ghost, len(some))
		for i, l := range some {
			l.mu.Lock()
			l.phase, ghosts[i] = over, l.ghost()
			l.mu.Unlock()
		}
		for _, g := range d.releaseGhosts(ctx, ghosts) {
			d.ghosts.Add(g)
		}
	}
}

// releaseCall is the release of a hold, or of several holds of one fair lock, for evalAll.
func (d *Driver) releaseCall(r *driver.Request, holds ...string) redisdriver.Call {
	return d.scriptsOf(r.Mode).release.Call(d.releaseKeys(r, nil), d.releaseArgs(r, nil, holds...)...)
}

// releaseKeys adds the keys of the release script.
func (d *Driver) releaseKeys(r *driver.Request, keys []string) []string {
	switch r.Mode {
	case driver.Permit:
		return permitKeys(r.Name, keys)
	case driver.Exclusive:
		return d.fairKeys(r.Name, append(keys, r.Name))
	}
	return readWriteKeys(r, false, append(keys, r.Name))
}

// releaseArgs adds the arguments of the release script.
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
