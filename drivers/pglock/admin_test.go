package pglock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestListOfNumbers lists names that are numbers, which the server keeps, and
// refuses to list other names, of which it keeps hashes.
func TestListOfNumbers(t *testing.T) {
	pg := testenv.Postgres(t)
	url := pg.URL("pglock") + "?sslmode=disable"
	numbers, pairs, hashes := drivertest.Open(t, url+"&key=number"), drivertest.Open(t, url+"&key=pair"), drivertest.Open(t, url)
	for _, name := range []string{"7", "-71", "9223372036854775807"} {
		drivertest.Acquire(t, numbers, drivertest.Request(name))
	}
	drivertest.Release(t, drivertest.Acquire(t, numbers, drivertest.Request("72")))
	drivertest.Acquire(t, pairs, drivertest.Request("7/-2147483648"))
	for _, test := range []struct {
		d      driver.Driver
		prefix string
		want   []string
	}{
		{numbers, "", []string{"-71", "7", "9223372036854775807"}},
		{numbers, "7", []string{"7"}},
		{pairs, "", []string{"7/-2147483648"}},
	} {
		if got, err := drivertest.Listed(t, t.Context(), test.d, test.prefix); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("List of %q: got %q and %v, want %q", test.prefix, got, err, test.want)
		}
	}
	if _, err := drivertest.Listed(t, t.Context(), hashes, ""); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "key=number") {
		t.Errorf("List of hashes: got %v", err)
	}
}

func TestListOfSilentServer(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	d := drivertest.Open(t, pg.URL("pglock")+"?sslmode=disable&key=number&ttl=4s")
	drivertest.ListOfSilentServer(t, d, pg.Freeze, pg.Thaw)
}

// TestIdentity checks that the identity is the same for all roles and after a
// restart, and differs for another database.
func TestIdentity(t *testing.T) {
	t.Parallel()
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
