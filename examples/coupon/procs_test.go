package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestProcs(t *testing.T) {
	server := testenv.Redis(t)
	for range 3 {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), []string{"-procs", "4", "-url", "redisson://" + server.Addr, "-moment", "1ms"}, &stdout, &stderr)
		checkSuccess(t, 100, 50, status, stdout.String(), stderr.String())
	}
	awaitNoClients(t, server)
}

func TestProcsShareBuyers(t *testing.T) {
	server := testenv.Redis(t)
	for _, procs := range []string{"2", "3", "5"} {
		var stdout, stderr bytes.Buffer
		args := []string{"-procs", procs, "-url", "redisson://" + server.Addr, "-moment", "0s", "-buyers", "5", "-coupons", "4"}
		checkSuccess(t, 5, 4, run(t.Context(), args, &stdout, &stderr), stdout.String(), stderr.String())
	}
}

// startSelling starts the program with four processes. It returns when one of
// them holds the lock and most of the work remains.
func startSelling(t *testing.T, server *testenv.RedisServer) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	cmd, stdout, stderr = testenv.Program(t, "-procs", "4", "-url", "redisson://"+server.Addr, "-moment", "100ms", "-coupons", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return locked(server) }, "a process holds the lock")
	return cmd, stdout, stderr
}

func locked(server *testenv.RedisServer) bool { return server.Do("EXISTS", lockName) == int64(1) }

// awaitNoClients returns when the server has no clients, so all processes have
// ended.
func awaitNoClients(t *testing.T, server *testenv.RedisServer) {
	t.Helper()
	testenv.Eventually(t, func() bool {
		return strings.Count(server.Do("CLIENT", "LIST").(string), "\n") == 1 // the connection of this query
	}, "all processes have ended")
}

func TestProcsErrorOfChildIsReported(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	cmd, stdout, stderr := startSelling(t, server)
	admin, err := dsync.Open(t.Context(), "redisson://"+server.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	for {
		err := admin.ForceUnlock(t.Context(), lockName)
		if err == nil {
			break
		}
		if !errors.Is(err, dsync.ErrNotHeld) { // it was between two holders
			t.Fatal(err)
		}
	}
	if err := admin.Close(t.Context()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	status, text := cmd.ProcessState.ExitCode(), stderr.String()
	if status != 1 || !strings.HasPrefix(text, "coupon: process ") || !strings.Contains(text, `"coupons": lock lost: removed`) {
		t.Errorf("got status %d, standard error %q; want 1, and the loss of the lock", status, text)
	}
	if stdout.Len() > 0 {
		t.Errorf("standard output: got %q, want nothing", stdout)
	}
	awaitNoClients(t, server)
}

func TestProcsEndWithSignal(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	cmd, stdout, stderr := startSelling(t, server)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	status, text := cmd.ProcessState.ExitCode(), stderr.String()
	if status != 1 || stdout.Len() > 0 || !strings.HasPrefix(text, "coupon: interrupted") {
		t.Errorf("got status %d, standard output %q, standard error %q; want 1, no output, and an error message", status, stdout, text)
	}
	if locked(server) {
		t.Error("the lock is held, want a free lock")
	}
	awaitNoClients(t, server)
}

func TestProcsEndWithParent(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	cmd, _, _ := startSelling(t, server)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	awaitNoClients(t, server)
	if locked(server) {
		t.Error("the lock is held, want a free lock")
	}
}
