//go:build wallclock

package stress

import "time"

// wallClock says that the wall clock of this program can jump: see overlay.
const wallClock = true

func setWallClock(seconds int64) { time.WallOffset = seconds }
