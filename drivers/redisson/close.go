package redisson

import (
	"context"
	"fmt"

	"github.com/go-dsync/dsync/driver"
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
	d.mu.Lock()
	leases := d.leases.Take()
	d.mu.Unlock()
	for len(leases) > 0 {
		some := leases[:min(len(leases), renewRuns)]
		leases = leases[len(some):]
		calls := make([]call, len(some))
		for i, l := range some {
			l.mu.Lock()
			l.phase = ending
			l.mu.Unlock()
			calls[i] = d.releaseCall(l.request.Mode, l.request.Name, l.request.Permits, l.request.Hold)
		}
		results, _ := d.evalAll(ctx, d.client, calls, 0)
		for i, l := range some {
			told, err := answersOf(results[i], 1)
			if err == nil {
				_ = l.released(told[0], 0) // nobody asks whether the hold was still there
				continue
			}
			l.leaveToCleaner()
		}
	}
}

// releaseCall is the release of a hold, or of several holds of one fair lock, for evalAll.
func (d *Driver) releaseCall(m driver.Mode, name string, permits int, holds ...string) call {
	return call{d.scriptsOf(m).release, d.releaseKeys(m, name, holds[0], nil), d.releaseArgs(m, name, permits, nil, holds...)}
}

// releaseKeys adds the keys of the release script.
func (d *Driver) releaseKeys(m driver.Mode, name, hold string, keys []string) []string {
	if m == driver.Permit {
		return permitKeys(name, keys)
	}
	keys = append(keys, name)
	if m != driver.Exclusive {
		return readWriteKeys(m, name, hold, false, keys)
	}
	return d.fairKeys(name, keys)
}

// releaseArgs adds the arguments of the release script.
func (d *Driver) releaseArgs(m driver.Mode, name string, permits int, args []string, holds ...string) []string {
	switch {
	case m == driver.Permit:
		return d.releasePermitsArgs(name, holds[0], permits, args)
	case m != driver.Exclusive:
		return d.readWriteReleaseArgs(m, name, holds[0], args)
	case d.options.Fair:
		return append(d.tellArgs(name, args), holds...)
	}
	return append(append(args, holds[0], prefixName(channelPrefix, name), d.releaseMessage()), d.checked.words...)
}
