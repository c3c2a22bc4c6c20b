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

// Sleep is a sleep of the machine that is over: the monotonic clock has stood still. If it is not known, only the wall clock tells.
func Sleep(c *Client, d time.Duration, known bool) {
	k := c.clock
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.asleep
	k.asleep = func() (time.Duration, bool) {
		slept, ok := before()
		return slept + d, ok && known
	}
	k.lead.Add(-int64(d))
}

// StepWallClock moves the wall clock of a client.
func StepWallClock(c *Client, d time.Duration) { c.clock.lead.Add(-int64(d)) }

// Missed returns what the clock of a client has missed since so long ago.
func Missed(c *Client, ago time.Duration) time.Duration { return c.clock.missed(c.now() - ago) }
