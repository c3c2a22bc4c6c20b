package zk_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestGarbledServer(t *testing.T) {
	proxy := testenv.NewProxy(t, testenv.ZooKeeper(t).Addr)
	drivertest.SurviveGarbled(t, "zk://"+proxy.Addr, 8, proxy)
}
