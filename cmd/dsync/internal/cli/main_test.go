package cli

import (
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m) }
