package bench

import "testing"

// counter tells how many requests servers have got from clients: the difference of two values, until it is stopped. A counter may take time of
// the servers'.
type counter struct {
	read func() int64
	stop func()
}

// Count returns how many requests the servers got from clients while during ran.
func (s *Servers) Count(tb testing.TB, during func()) int64 {
	tb.Helper()
	c := s.Counter(tb)
	defer c.stop()
	before := c.read()
	during()
	return c.read() - before
}
