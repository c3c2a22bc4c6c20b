//go:build unix

package caslock

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/castest"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

func TestMain(m *testing.M) {
	conformance.RunWorker()
	m.Run()
}

// memoryDir returns a directory in memory, if there is one, because a write to
// a busy disk may take longer than Options.Timeout.
func memoryDir(tb testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "caslock-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestConformance runs the suite on a directory, in real time and with other
// processes.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Harness{Backend: func(tb testing.TB) *conformance.Backend {
		dir, other := memoryDir(tb), Folder(memoryDir(tb))
		o := cas.Options{Name: "caslock", Poll: 20 * time.Millisecond}
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				store, link := castest.Disturb(tb, Folder(dir))
				return cas.New(store, o), link
			},
			Expire: func(tb testing.TB, name string) {
				d := cas.New(Folder(dir), o)
				defer d.Close(context.Background())
				_ = d.ForceUnlock(tb.Context(), name) // ErrNotHeld: there is none
			},
			URL: "caslock://" + dir,
			Ping: func(ctx context.Context) error { // there may be no memoryDir
				e, err := other.Read(ctx, "ping")
				if err == nil {
					_, err = other.Write(ctx, "ping", []byte(time.Now().String()), e.Version)
				}
				return err
			},
		}
	}})
}
