//go:build unix

package filelock

import (
	"os/exec"
	"sync"
	"testing"

	"github.com/go-dsync/dsync"
)

// Processes that are being started have copies of open files for a moment.
func TestReleaseFreesTheLockAlsoWhileProcessesAreStarted(t *testing.T) {
	c, err := dsync.New(New(t.TempDir(), nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	ended := make(chan struct{})
	var starters sync.WaitGroup
	for range 4 {
		starters.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 3000 {
		l, err := c.TryLock(t.Context(), "x")
		if err != nil {
			t.Errorf("TryLock %d of a free lock: %v", i, err)
			break
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(ended)
	starters.Wait()
}
