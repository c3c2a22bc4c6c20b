package etcd_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestLocksAreFreeAfterSIGTERM(t *testing.T) {
	drivertest.FreesWhenTerminated(t, "etcd://"+testenv.Etcd(t).Addr)
}
