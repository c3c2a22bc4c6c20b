package etcd_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestGarbledServer(t *testing.T) {
	proxy := testenv.NewProxy(t, testenv.Etcd(t).Addr)
	drivertest.SurviveGarbled(t, "etcd://"+proxy.Addr, 14, proxy)
}
