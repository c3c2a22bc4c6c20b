package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// asleep returns how long the machine has slept since its start. CLOCK_BOOTTIME
// advances during a sleep and CLOCK_MONOTONIC does not. It returns false if the
// kernel does not know this.
func asleep() (time.Duration, bool) {
	const clockMonotonic, clockBoottime = 1, 7
	best, slept := time.Duration(-1), time.Duration(0)
	for range 100 { // until two readings are close to each other
		before, ok1 := readClock(clockMonotonic)
		boot, ok2 := readClock(clockBoottime)
		after, ok3 := readClock(clockMonotonic)
		if !ok1 || !ok2 || !ok3 {
			return 0, false
		}
		if apart := after - before; best < 0 || apart < best {
			best, slept = apart, boot-before // if inexact, the time is too long
		}
		if best < minSleep/4 {
			break
		}
	}
	return slept, true
}

func readClock(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
