package dsync

// KnownNames returns how many names the client keeps something for.
func KnownNames(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.locks)
}
