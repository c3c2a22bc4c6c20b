package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func ownBinary() (string, error) { return os.Executable() }

// sinceBoot is a clock that all processes share. On macOS this one goes on while the machine sleeps.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// zombie is SZOMB of sys/proc.h.
const zombie = 5

// members returns the processes of a group that have not ended.
func members(group int) (pids []int, err error) {
	processes, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", group)
	for _, p := range processes {
		if p.Proc.P_stat != zombie {
			pids = append(pids, int(p.Proc.P_pid))
		}
	}
	return pids, err
}
