package history

import (
	"syscall"
	"time"
	"unsafe"
)

// sharedClock reads CLOCK_MONOTONIC, which all processes of a machine share.
// The monotonic clock of time.Now counts from the start of its own process.
func sharedClock() time.Duration {
	const clockMonotonic = 1
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic(errno) // the arguments are constant, so this kernel has no such clock
	}
	return time.Duration(ts.Nano())
}
