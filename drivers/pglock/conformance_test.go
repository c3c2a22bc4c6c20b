package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func init() { conformance.RunWorker() }

// There is no Expire: what ends one hold ends all of its session. Checks that end one of one do it by ForceUnlock.
func TestConformance(t *testing.T) {
	pg := testenv.Postgres(t)
	conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				wire := new(conformance.Wire)
				tb.Cleanup(wire.Close)
				config, err := pgx.ParseConfig(pg.URL("postgres") + "?sslmode=disable")
				if err != nil {
					tb.Fatal(err)
				}
				config.DialFunc = wire.DialContext
				d, err := pglock.New(tb.Context(), config, &pglock.Options{MaxLocks: 5000, ForceUnlock: true})
				if err != nil {
					tb.Fatal(err)
				}
				return d, wire.Link()
			},
			Freeze:  func(testing.TB) { pg.Freeze() },
			Thaw:    func(testing.TB) { pg.Thaw() },
			Restart: func(testing.TB) { pg.Restart() },
			URL:     pg.URL("pglock") + "?sslmode=disable&force_unlock=true",
		}
	}})
}
