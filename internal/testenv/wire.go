package testenv

import (
	"testing"

	"github.com/go-dsync/dsync/conformance/wire"
)

// Wire returns a network to the server at target (host:port) that can be disturbed until the test ends, and the address that leads
// over it.
func Wire(tb testing.TB, target string) (w *wire.Wire, addr string) {
	tb.Helper()
	w = new(wire.Wire)
	tb.Cleanup(w.Close)
	addr, err := w.Listen(target)
	if err != nil {
		tb.Fatal(err)
	}
	return w, addr
}
