package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func init() { conformance.RunWorker() }

// TestConformance is with a role that has the rights of docs/security.md and no others. There is no Expire and no ExpireHold: what ends one
// hold ends all of its session, and Reads of a driver have one lock there. Checks that end one of one do it by ForceUnlock.
func TestConformance(t *testing.T) {
	pg := testenv.Postgres(t)
	user := makeLocker(t, pg) + "@" + pg.Addr + "/locks?sslmode=disable"
	conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				w := new(wire.Wire)
				tb.Cleanup(w.Close)
				config, err := pgx.ParseConfig("postgres://" + user)
				if err != nil {
					tb.Fatal(err)
				}
				config.DialFunc = w.DialContext
				d, err := pglock.New(tb.Context(), config, &pglock.Options{MaxLocks: 5000, ForceUnlock: true})
				if err != nil {
					tb.Fatal(err)
				}
				return d, conformance.LinkOver(w)
			},
			Ping:    pg.Ping,
			Freeze:  func(testing.TB) { pg.Freeze() },
			Thaw:    func(testing.TB) { pg.Thaw() },
			Restart: func(testing.TB) { pg.Restart() },
			URL:     "pglock://" + user + "&force_unlock=true",
		}
	}})
}
