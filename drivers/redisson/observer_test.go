package redisson

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestObserverComesBack takes half a minute.
func TestObserverComesBack(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	drivertest.ObserverComesBack(t, testenv.Redis(t).Addr, func(addr string) string { return "redisson://" + addr + "?ttl=10s" })
}
