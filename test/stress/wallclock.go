//go:build wallclock

package stress

import "time"

// wallClock reports whether the clocks of this program can jump; see overlay.
const wallClock = true

func setWallClock(seconds int64) { time.WallOffset = seconds }

// sleepMachine makes the clocks show that the machine has slept.
func sleepMachine(seconds int64) {
	time.SleepOffset += seconds
	time.WallOffset += seconds
}
