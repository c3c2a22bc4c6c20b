package zk_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestGarbledServer(t *testing.T) {
	link, addr := testenv.Wire(t, testenv.ZooKeeper(t).Addr)
	drivertest.SurviveGarbled(t, "zk://"+addr, 8, link)
}
