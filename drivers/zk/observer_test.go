package zk_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestObserverComesBack takes half a minute.
func TestObserverComesBack(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	drivertest.ObserverComesBack(t, testenv.ZooKeeper(t).Addr, func(addr string) string { return "zk://" + addr + "?ttl=10s" })
}
