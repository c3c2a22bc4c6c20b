//go:build !linux

package testenv

import (
	"net"
	"os/exec"
	"testing"
)

// EndWithUs does nothing, because only Linux can tie a child's life to ours.
// Elsewhere the cleanup of the test ends the child.
func EndWithUs(*exec.Cmd) {}

// ownNetwork is never called, because only Linux has network namespaces.
func ownNetwork(*exec.Cmd) {}

// waitStopped does not wait. On these systems a freeze takes effect a moment
// after the signal.
func waitStopped(int) error { return nil }

// inMemory always returns false, because file systems without a disk are not
// recognized on these systems.
func inMemory(string) bool { return false }

// freePort returns a loopback port that was free a moment ago.
func freePort(tb testing.TB) int {
	tb.Helper()
	port, err := bind(tb, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// bind checks whether a loopback port is free. Port 0 means any port.
func bind(_ testing.TB, port int) (int, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
