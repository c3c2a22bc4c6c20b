package pglock_test

import (
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestIdentity: one for all roles and after a restart, another one for another database.
func TestIdentity(t *testing.T) {
	pg := testenv.Postgres(t)
	locker := makeLocker(t, pg)
	identity := func(role, database string) uint64 {
		d, _, err := driver.Open(t.Context(), "pglock://"+role+"@"+pg.Addr+"/"+database+"?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		defer closeDriver(t, d)
		n, err := d.(*pglock.Driver).Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	locks := identity(locker, "locks")
	if other := identity("postgres", "postgres"); other == locks {
		t.Errorf("two databases have the identity %d", locks)
	}
	pg.Restart()
	if n := identity("postgres", "locks"); n != locks {
		t.Errorf("after a restart, with another role: got %d, want %d", n, locks)
	}
}
