package etcd_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestGarbledServer(t *testing.T) {
	link, addr := testenv.Wire(t, testenv.Etcd(t).Addr)
	drivertest.SurviveGarbled(t, "etcd://"+addr, 14, link)
}
