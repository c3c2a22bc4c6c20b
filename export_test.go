package dsync

import "time"

// KnownNames returns the number of names for which the client has state.
func KnownNames(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, locks := range c.locks {
		n += len(locks)
	}
	return n
}

// Sleep simulates a past sleep of the machine, during which the monotonic clock
// stood still. If known is false, only the wall clock shows it.
func Sleep(c *Client, d time.Duration, known bool) {
	c.clock.Sleep(d, known)
}

// StepWallClock moves the wall clock of a client.
func StepWallClock(c *Client, d time.Duration) { c.clock.StepWall(d) }
