//go:build !wallclock

package stress

const wallClock = false

func setWallClock(int64) { panic("the wall clock of this program cannot jump") }
func sleepMachine(int64) { panic("the clocks of this program cannot jump") }
