//go:build !linux

package dsync

import "time"

// asleep does not know how long the machine has slept.
func asleep() (time.Duration, bool) { return 0, false }
