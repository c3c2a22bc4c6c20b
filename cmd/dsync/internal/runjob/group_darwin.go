package runjob

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adopts reports whether the system can make a process the new parent of its
// orphaned descendants. If it cannot, a command consists of its process group.
const adopts = false

func adopt() error { return nil }

func ownBinary() (string, error) { return os.Executable() }

// sinceBoot is a clock that all processes share. On macOS it continues while
// the machine sleeps.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// zombie is SZOMB of sys/proc.h.
const zombie = 5

// process is a process of a command.
type process struct{ pid, parent, group int }

// family returns the other living processes of the group that root leads.
func family(root int, _ map[int]bool) (all []process, err error) {
	processes, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", root)
	for _, p := range processes {
		if pid := int(p.Proc.P_pid); pid != root && p.Proc.P_stat != zombie {
			all = append(all, process{pid: pid, parent: int(p.Eproc.Ppid), group: root})
		}
	}
	return all, err
}

func (p process) signal(s syscall.Signal) error { return unix.Kill(p.pid, s) }
