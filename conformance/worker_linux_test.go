package conformance

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestStoppedWorkerEndsWithTheSuite kills a process that has stopped a worker.
func TestStoppedWorkerEndsWithTheSuite(t *testing.T) {
	if os.Getenv("CONFORMANCE_STOPPED") != "" {
		check{"group/name", "A promise.", func(e *env) error {
			p := e.worker(time.Minute)
			p.stop()
			fmt.Println("worker", p.process.Pid)
			select {}
		}}.result(t, onFiles(t, ""))
		return
	}
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "-test.run=^TestStoppedWorkerEndsWithTheSuite$")
	cmd.Env = append(os.Environ(), "CONFORMANCE_STOPPED=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	for in := bufio.NewScanner(out); pid == 0 && in.Scan(); {
		_, _ = fmt.Sscanf(in.Text(), "worker %d", &pid)
	}
	if pid == 0 {
		t.Fatalf("the suite ended with %v before it had a worker", cmd.Wait())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for end := time.Now().Add(10 * time.Second); isRunning(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the worker is still running")
		}
	}
}

// isRunning reports whether the process exists and has not ended.
func isRunning(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	var n int
	var name, state string
	_, _ = fmt.Sscan(string(text), &n, &name, &state)
	return err == nil && state != "Z"
}
