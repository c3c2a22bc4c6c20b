package doctor

import (
	"log"
	"os"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
)

// TestMain runs the tests in the directory where package drivertest finds
// docs/backends.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		log.Fatal(err)
	}
	clitest.Main(m)
}
