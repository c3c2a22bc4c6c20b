package etcd_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestObserverComesBack takes half a minute.
func TestObserverComesBack(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	drivertest.ObserverComesBack(t, testenv.Etcd(t).Addr, func(addr string) string { return "etcd://" + addr + "?ttl=10s" })
}
