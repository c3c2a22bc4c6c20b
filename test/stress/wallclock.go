//go:build wallclock

package stress

import "time"

// wallClock says that the clocks of this program can jump: see overlay.
const wallClock = true

func setWallClock(seconds int64) { time.WallOffset = seconds }

// sleepMachine lets the clocks show that the machine has slept.
func sleepMachine(seconds int64) {
	time.SleepOffset += seconds
	time.WallOffset += seconds
}
