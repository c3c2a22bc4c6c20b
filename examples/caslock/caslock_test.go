//go:build unix

package caslock

import (
	"context"
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

// TestConformance runs the suite on a directory, in real time and with other
// processes.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Harness{Backend: func(tb testing.TB) *conformance.Backend {
		dir, other := tb.TempDir(), Folder(tb.TempDir())
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
			Ping: func(ctx context.Context) error { // the disk may be busy
				e, err := other.Read(ctx, "ping")
				if err == nil {
					_, err = other.Write(ctx, "ping", []byte(time.Now().String()), e.Version)
				}
				return err
			},
		}
	}})
}
