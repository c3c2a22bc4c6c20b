package testenv

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
)

// Apart gives servers the last CPU of the machine, and this process the others, until b ends. It is for benchmarks of throughput, which
// measure the scheduler otherwise. Where there is one CPU or no taskset, it does nothing.
func Apart(b *testing.B, servers ...int) {
	b.Helper()
	cpus := runtime.NumCPU()
	if _, err := exec.LookPath("taskset"); err != nil || cpus < 2 {
		b.Log("the servers and this process share the CPUs: figures vary more")
		return
	}
	last := strconv.Itoa(cpus - 1)
	for _, pid := range servers {
		pin(b, last, pid)
	}
	pin(b, "0-"+strconv.Itoa(cpus-2), os.Getpid())
	procs := runtime.GOMAXPROCS(cpus - 1)
	b.Cleanup(func() {
		runtime.GOMAXPROCS(procs)
		pin(b, "0-"+last, os.Getpid())
	})
}

// pin binds all threads of a process to CPUs.
func pin(b *testing.B, cpus string, pid int) {
	b.Helper()
	if out, err := exec.Command("taskset", "-a", "-p", "-c", cpus, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		b.Fatalf("taskset: %v: %s", err, out)
	}
}
