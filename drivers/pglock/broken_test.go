package pglock_test

import (
	"testing"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestGarbledServer(t *testing.T) {
	t.Parallel()
	link, addr := testenv.Wire(t, testenv.Postgres(t).Addr)
	drivertest.SurviveGarbled(t, "pglock://postgres@"+addr+"/postgres", 14, link)
}
