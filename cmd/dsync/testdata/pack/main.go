// Command pack is the command of the trials of `dsync run`: it starts processes that start others, all of which ignore TERM, and each writes
// the time to a file of its own for as long as it runs.
//
//	pack DIR LABEL DEPTH
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
	atMost = 2 * time.Minute // so that nothing stays behind
	every  = 5 * time.Millisecond
)

func main() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	start := sinceBoot()
	dir, label := os.Args[1], os.Args[2]
	depth, err := strconv.Atoi(os.Args[3])
	check(err)
	if depth == 0 {
		saw := others(dir, label)
		check(os.WriteFile(filepath.Join(dir, label+".saw"), []byte(saw), 0o600))
		check(os.WriteFile(filepath.Join(dir, label+".part"), []byte(strconv.FormatInt(int64(start), 10)), 0o600))
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
	for end := start + atMost; sinceBoot() < end; time.Sleep(every) {
		_, err := file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(sinceBoot())), 0)
		check(err)
	}
}

// others returns the processes of other packs that are there right now.
func others(dir, label string) (saw string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.pid.*"))
	check(err)
	for _, file := range files {
		name := filepath.Base(file)
		_, pid, _ := strings.Cut(name, ".pid.")
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.HasPrefix(name, label+".") || !strings.Contains(string(stat), "(pack)") {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X") {
			saw += name + " "
		}
	}
	return saw
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
