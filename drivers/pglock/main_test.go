package pglock_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunRole(roles)
	testenv.NoLeaks(m)
}
