package migrate_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m, map[string]func(){"client": clientProcess}) }
