//go:build !linux

package clock

import "time"

// asleep always reports that it does not know how long the machine has slept.
func asleep() (time.Duration, bool) { return 0, false }
