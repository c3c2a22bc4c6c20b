package testenv

import "testing"

// LongMark is in the text by which a test says that it is left to make test-long.
const LongMark = "left to make test-long"

// Long skips a test that takes long, and looks no further than others do, in the short form of the tests.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip(LongMark)
	}
}

// Briefly returns the first value in the short form of the tests, and otherwise the second.
func Briefly[T any](short, long T) T {
	if testing.Short() {
		return short
	}
	return long
}
