package dsync

import "time"

// KnownNames returns how many names the client keeps something for.
func KnownNames(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, locks := range c.locks {
		n += len(locks)
	}
	return n
}

// Sleep is a sleep of the machine that is over: the monotonic clock has stood
// still. If it is not known, only the wall clock tells.
func Sleep(c *Client, d time.Duration, known bool) {
	c.clock.Sleep(d, known)
}

// StepWallClock moves the wall clock of a client.
func StepWallClock(c *Client, d time.Duration) { c.clock.StepWall(d) }
