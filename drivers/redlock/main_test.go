package redlock

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-dsync/dsync/internal/testenv"
)

var roles = map[string]func(){}

func TestMain(m *testing.M) {
	testenv.RunRole(roles)
	goleak.VerifyTestMain(m)
}
