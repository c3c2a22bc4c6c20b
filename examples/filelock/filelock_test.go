//go:build unix

package filelock_test

import (
	"strings"
	"testing"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/examples/filelock"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Harness{
		Backend: func(tb testing.TB) *conformance.Backend {
			dir := tb.TempDir()
			b := &conformance.Backend{New: func(testing.TB) (driver.Driver, *conformance.Link) {
				return filelock.New(dir, nil), nil
			}}
			// The checks between processes also need a URL. A lock file is
			// freed immediately when its process dies.
			if strings.Contains(tb.Name(), "/url/") {
				b.URL = "filelock://" + dir
			}
			return b
		},
	})
}

func TestURLWithoutFolder(t *testing.T) {
	for _, url := range []string{"filelock://", "filelock://host/folder", "filelock://me@/folder"} {
		if d, _, err := driver.Open(t.Context(), url); err == nil {
			t.Errorf("%s: got the driver %v, want an error", url, d)
		}
	}
}
