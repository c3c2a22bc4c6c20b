package pglock_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestGarbledServer(t *testing.T) {
	proxy := testenv.NewProxy(t, testenv.Postgres(t).Addr)
	drivertest.SurviveGarbled(t, "pglock://postgres@"+proxy.Addr+"/postgres", 14, proxy)
}
