package runjob

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adopts reports whether the system can make a process the new parent of its
// orphaned descendants.
const adopts = true

// adopt makes this process such a parent.
func adopt() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// ownBinary returns this program, even if the file was replaced since its
// start.
func ownBinary() (string, error) { return "/proc/self/exe", nil }

// sinceBoot is a clock that all processes share. It continues while the machine
// sleeps.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // Linux has had this clock since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// process is a process of a command. Its start time distinguishes it from a
// later process that reuses its pid.
type process struct {
	pid, parent, group int
	start              uint64
}

// family returns the living descendants of root, except the processes in
// except. It may miss a process whose parent ends during the call.
func family(root int, except map[int]bool) (all []process, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(0)
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	ended := map[int]bool{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, hasEnded, err := readProcess(pid); err == nil { // otherwise it is gone
			children[p.parent] = append(children[p.parent], p)
			ended[pid] = hasEnded
		}
	}
	for of := []int{root}; len(of) > 0; of = of[1:] {
		for _, p := range children[of[0]] {
			if except[p.pid] {
				continue
			}
			of = append(of, p.pid)
			if !ended[p.pid] {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// readProcess returns a process, and whether it is a zombie.
func readProcess(pid int) (p process, hasEnded bool, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false, err
	}
	// The format is: pid (name) state parent group ... The name may contain
	// anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return p, false, errors.New("/proc has an unknown format")
	}
	number := func(i int) uint64 {
		n, parseErr := strconv.ParseUint(string(fields[i]), 10, 64)
		err = errors.Join(err, parseErr)
		return n
	}
	state, threads := fields[0][0], fields[17]
	p = process{pid: pid, parent: int(number(1)), group: int(number(2)), start: number(19)}
	// A process whose first thread has ended continues in its other threads.
	return p, (state == 'Z' || state == 'X') && len(threads) == 1 && threads[0] <= '1', err
}

// signal sends a signal to the process, but never to a later process that
// reuses its pid.
func (p process) signal(s syscall.Signal) error {
	fd, pidfdErr := unix.PidfdOpen(p.pid, 0) // since Linux 5.3
	if pidfdErr == nil {
		defer unix.Close(fd)
	}
	switch now, _, err := readProcess(p.pid); {
	case err != nil || now.start != p.start:
		return unix.ESRCH
	case pidfdErr == nil:
		return unix.PidfdSendSignal(fd, s, nil, 0)
	}
	return unix.Kill(p.pid, s)
}
