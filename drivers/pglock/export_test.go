package pglock

import "context"

// Waits asks the server whether each session for waits is still waiting.
func (d *Driver) Waits(ctx context.Context) (waits []bool, err error) {
	d.mu.Lock()
	var all []*session
	for s := range d.sessions {
		if s.waiter {
			all = append(all, s)
		}
	}
	d.mu.Unlock()
	for _, s := range all {
		waits = append(waits, d.stillWaits(ctx, s))
	}
	return waits, nil
}
