package testenv

import (
	"fmt"
	"testing"
)

func TestChildrenDieWithTheTestBinary(t *testing.T) {
	need(t, "redis-server", "redis-server")
	p := Spawn(t, "parent", "TMPDIR="+t.TempDir())
	var pids [2]int
	if _, err := fmt.Sscan(p.Line(), &pids[0], &pids[1]); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if gone(pid) {
			t.Fatalf("process %d does not run", pid)
		}
	}
	p.Kill()
	for _, pid := range pids {
		Eventually(t, func() bool { return gone(pid) }, "a child of a killed test binary is gone")
	}
}
