//go:build linux || darwin

package runjob

import (
	"os"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestMain lets the test binary run as the guard.
func TestMain(m *testing.M) {
	testenv.RunProgram(func() {
		c := guardCommand()
		c.SetArgs(os.Args[2:])
		if c.Execute() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	})
	clitest.Main(m)
}
