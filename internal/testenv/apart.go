package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
)

// Apart gives servers the last CPU of the machine, and this process the others, until tb ends. It is for benchmarks of throughput, which
// measure the scheduler otherwise. Where there is one CPU or no taskset, it does nothing.
func Apart(tb testing.TB, servers ...int) {
	tb.Helper()
	cpus := runtime.NumCPU()
	if _, err := exec.LookPath("taskset"); err != nil || cpus < 2 {
		tb.Log("the servers and this process share the CPUs: figures vary more")
		return
	}
	last := strconv.Itoa(cpus - 1)
	ServersApart(tb, servers...)
	pin(tb, "0-"+strconv.Itoa(cpus-2), os.Getpid())
	procs := runtime.GOMAXPROCS(cpus - 1)
	tb.Cleanup(func() {
		runtime.GOMAXPROCS(procs)
		pin(tb, "0-"+last, os.Getpid())
	})
}

// ServersApart gives servers that were started after [Apart] their CPU, with the processes that they have started.
func ServersApart(tb testing.TB, servers ...int) {
	tb.Helper()
	cpus := runtime.NumCPU()
	if _, err := exec.LookPath("taskset"); err != nil || cpus < 2 {
		return
	}
	for _, pid := range servers {
		pin(tb, strconv.Itoa(cpus-1), pid)
		for _, child := range childPids(pid) {
			_ = affinity(strconv.Itoa(cpus-1), child) // it may have ended
		}
	}
}

// pin binds all threads of a process to CPUs.
func pin(tb testing.TB, cpus string, pid int) {
	tb.Helper()
	if err := affinity(cpus, pid); err != nil {
		tb.Fatal(err)
	}
}

func affinity(cpus string, pid int) error {
	out, err := exec.Command("taskset", "-a", "-p", "-c", cpus, strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("taskset: %w: %s", err, out)
	}
	return nil
}
