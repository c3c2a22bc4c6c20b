package pglock_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunRole(roles)
	goleak.VerifyTestMain(m)
}
