package testenv

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestPostgresLeavesNothing kills a server, which then cannot remove its
// resources outside of its directory.
func TestPostgresLeavesNothing(t *testing.T) {
	pg := Postgres(t)
	for range 2 {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pg.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(maps), "/dev/shm/") {
			t.Error("the server has files in /dev/shm")
		}
		segment := pg.segment()
		if !hasSegment(t, segment) {
			t.Fatalf("the server has no segment %q", segment)
		}
		pg.Kill()
		if hasSegment(t, segment) {
			t.Errorf("the segment %s is still there", segment)
		}
		pg.Start()
	}
}

func hasSegment(t *testing.T, id string) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[1] == id {
			return true
		}
	}
	return false
}
