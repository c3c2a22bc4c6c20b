// Command pack is the test command of `dsync run`. It starts processes that
// start other processes. All of them ignore TERM. While it runs, each process
// writes the time to a file of its own, and the longest time between two such
// writes.
//
//	pack DIR LABEL DEPTH
//	pack DIR LABEL look     shows the processes of other packs
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const (
	atMost = 2 * time.Minute // leave nothing behind
	every  = 5 * time.Millisecond
)

func main() {
	start := sinceBoot()
	dir, label := os.Args[1], os.Args[2]
	if os.Args[3] == "look" {
		fmt.Print(others(dir, label))
		return
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	depth, err := strconv.Atoi(os.Args[3])
	check(err)
	if depth == 0 {
		saw := others(dir, label)
		check(os.WriteFile(filepath.Join(dir, label+".saw"), []byte(saw), 0o600))
		check(os.WriteFile(filepath.Join(dir, label+".part"), fmt.Appendf(nil, "%d %d", start, os.Getpid()), 0o600))
		check(os.Rename(filepath.Join(dir, label+".part"), filepath.Join(dir, label+".start")))
	}
	if depth < 2 {
		for range 2 - depth { // 1, 2 and 2 processes
			c := exec.Command(os.Args[0], dir, label, strconv.Itoa(depth+1))
			check(c.Start())
		}
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s.pid.%d", label, os.Getpid())))
	check(err)
	var longest time.Duration
	for now, last, end := sinceBoot(), sinceBoot(), start+atMost; now < end; now = sinceBoot() {
		longest, last = max(longest, now-last), now
		_, err := file.WriteAt(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(now)), uint64(longest)), 0)
		check(err)
		time.Sleep(every)
	}
}

// others returns the processes of other packs that exist right now.
func others(dir, label string) (saw string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.pid.*"))
	check(err)
	for _, file := range files {
		name := filepath.Base(file)
		_, pid, _ := strings.Cut(name, ".pid.")
		if !strings.HasPrefix(name, label+".") && runs(pid) {
			saw += name + " "
		}
	}
	return saw
}

// runs reports whether a process of a pack exists that may run again. A process
// that got KILL may need CPU time to end, but its program does not continue.
func runs(pid string) bool {
	const exiting, signaled = 0x4, 0x400 // flags of a task, see proc(5)
	// This comes first: KILL is pending, and then the process is exiting.
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	_, rest, isPack := strings.Cut(string(stat), "(pack) ")
	fields := strings.Fields(rest) // from the state on
	if err != nil || !isPack || fields[0] == "Z" || fields[0] == "X" {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	check(err)
	return flags&(exiting|signaled) == 0 && !isKilled(string(status))
}

// isKilled reports whether KILL is pending for a process.
func isKilled(status string) bool {
	for line := range strings.Lines(status) {
		if set, ok := strings.CutPrefix(line, "SigPnd:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			check(err)
			return n&(1<<(syscall.SIGKILL-1)) != 0
		}
	}
	return false
}

func sinceBoot() time.Duration {
	const clockBoottime = 7
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		check(errno)
	}
	return time.Duration(ts.Nano())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}
