package runjob

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestNoCommandStartsTooLate checks that a dsync that was frozen just before
// the start does not start its command after the lock has ended.
func TestNoCommandStartsTooLate(t *testing.T) {
	program, _, _ := testenv.Program(t)
	for _, v := range program.Env {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	r := &runner{name: "x", path: "/bin/true", argv: []string{"true"}, stderr: io.Discard}
	t.Run("time is over", func(t *testing.T) {
		lease := clitest.Lock(t, clitest.Client(t, "memory://guard"), "x")
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if done := r.supervise(lease); done.started || done.lost == nil || done.err != nil {
			t.Errorf("got %+v", done)
		}
	})
	t.Run("guard is faster", func(t *testing.T) {
		file := t.TempDir() + "/started"
		g, err := startGuard("/usr/bin/touch", []string{"touch", file}, os.Environ())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.sendDeadline(time.Now()); err != nil { // as if this process had been frozen after it read the clock
			t.Fatal(err)
		}
		killed := false
		for r := range g.heard { // until the guard has ended
			killed = killed || r.kind == isKilling
		}
		g.end(func(report) {})
		if _, err := os.Stat(file); err == nil {
			t.Error("the command was started")
		}
		if !killed {
			t.Error("the guard did not report that it kills the command")
		}
	})
}
