package testenv

import "testing"

// Long skips a test that `make test` leaves to `make test-long`, since others look at nearly the same in less time.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("left to make test-long")
	}
}

// Briefly returns the first value in the short form of the tests, which `make test` runs, and otherwise the second.
func Briefly[T any](short, long T) T {
	if testing.Short() {
		return short
	}
	return long
}
