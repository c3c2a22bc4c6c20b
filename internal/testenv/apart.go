package testenv

import (
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
		for _, p := range append(childPids(pid), pid) {
			pin(tb, strconv.Itoa(cpus-1), p)
		}
	}
}

// pin binds all threads of a process to CPUs.
func pin(tb testing.TB, cpus string, pid int) {
	tb.Helper()
	if out, err := exec.Command("taskset", "-a", "-p", "-c", cpus, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		tb.Fatalf("taskset: %v: %s", err, out)
	}
}
