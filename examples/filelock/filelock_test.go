//go:build unix

package filelock_test

import (
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
			return &conformance.Backend{New: func(testing.TB) (driver.Driver, *conformance.Link) {
				return filelock.New(dir), nil
			}}
		},
	})
}
