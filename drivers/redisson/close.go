package redisson

import (
	"context"
	"fmt"

	"github.com/go-dsync/dsync/driver"
)

// Close implements driver.Driver.
func (d *Driver) Close(ctx context.Context) error {
	if !d.beginClose() {
		return driver.ErrClosed
	}
	waiting := d.awaitCalls(ctx)
	d.releaseAll(ctx)
	ghosts := d.ghosts.finish(ctx)
	d.topics.close()
	d.sender.end()
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.end()

	finished := make(chan struct{})
	go func() { // ends with the driver's goroutines: when their requests are answered or fail
		d.wg.Wait()
		if d.dialer != nil {
			d.closeClient(ctx)
		}
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
	}
	if waiting+ghosts > 0 {
		return fmt.Errorf("%w: %d calls and %d holds were left behind: %w", driver.ErrUnknown, waiting, ghosts, ctx.Err())
	}
	return nil
}

// closeClient closes a client that is the driver's own. A client of sentinels or of a cluster may be about to connect, in goroutines
// that its Close does not wait for, and would leave that connection open; and where a server does not answer its Close waits for that.
func (d *Driver) closeClient(ctx context.Context) {
	defer context.AfterFunc(ctx, d.dialer.End)()
	d.client.Close()
	d.dialer.End()
	d.dialer.Wait()
}

// beginClose has every call of Acquire fail from now on.
func (d *Driver) beginClose() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.closed = true
	close(d.closing)
	return true
}

// awaitCalls returns how many calls of Acquire had not ended when ctx did.
func (d *Driver) awaitCalls(ctx context.Context) int {
	d.mu.Lock()
	if d.calls == 0 {
		d.mu.Unlock()
		return 0
	}
	idle := make(chan struct{})
	d.idle = idle
	d.mu.Unlock()
	select {
	case <-idle:
		return 0
	case <-ctx.Done():
	}
	if d.dialer != nil {
		d.dialer.Break() // which ends those that wait for an answer
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// releaseAll ends the holds of all leases in few requests, and leaves to the cleaner what fails.
func (d *Driver) releaseAll(ctx context.Context) {
	d.mu.Lock()
	leases := d.leases.take()
	d.mu.Unlock()
	for len(leases) > 0 {
		some := leases[:min(len(leases), renewRuns)]
		leases = leases[len(some):]
		calls := make([]call, len(some))
		for i, l := range some {
			l.mu.Lock()
			l.phase = ending
			l.mu.Unlock()
			calls[i] = d.releaseCall(l.request.Name, l.request.Hold)
		}
		results, _ := d.evalAll(ctx, d.client, d.scripts.release, calls, 0)
		for i, l := range some {
			told, err := results[i].ToInt64()
			if err == nil {
				_ = l.released(told, 0) // whether it was still there is of no interest to anybody
				continue
			}
			l.haunt()
		}
	}
}

// releaseCall is the release of a hold for evalAll.
func (d *Driver) releaseCall(name, hold string) call {
	args := append([]string{hold, prefixName(channelPrefix, name)}, d.checked.words...)
	return call{keys: d.fairKeys(name, []string{name}), args: args}
}
