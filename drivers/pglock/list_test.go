package pglock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestListOfNumbers lists names that are numbers, which the server keeps, and refuses to list others, of which it keeps hashes.
func TestListOfNumbers(t *testing.T) {
	pg := testenv.Postgres(t)
	listed := func(d driver.Driver, prefix string) (names []string, err error) {
		for name, err := range d.(driver.Lister).List(t.Context(), prefix) {
			if err != nil {
				return nil, err
			}
			names = append(names, name)
		}
		slices.Sort(names)
		return names, nil
	}
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
		if got, err := listed(test.d, test.prefix); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("List of %q: got %q and %v, want %q", test.prefix, got, err, test.want)
		}
	}
	if _, err := listed(hashes, ""); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "key=number") {
		t.Errorf("List of hashes: got %v", err)
	}
}
