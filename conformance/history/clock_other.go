//go:build !linux

package history

import "time"

// sharedClock reads the wall clock, the only one that the standard library
// shares among processes here.
func sharedClock() time.Duration { return time.Duration(time.Now().UnixNano()) }
