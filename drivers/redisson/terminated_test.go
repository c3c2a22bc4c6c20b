package redisson

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestLocksAreFreeAfterSIGTERM(t *testing.T) {
	t.Parallel()
	drivertest.FreesWhenTerminated(t, "redisson://"+testenv.Redis(t).Addr)
}
