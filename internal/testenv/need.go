package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// need returns the path of a server's binary. Where it is not installed, the test fails if CI is set, and is skipped otherwise.
func need(tb testing.TB, binary, pkg string) string {
	tb.Helper()
	path, err := exec.LookPath(binary)
	if err != nil {
		missing(tb, binary, pkg)
	}
	return path
}

func missing(tb testing.TB, binary, pkg string) {
	tb.Helper()
	const text = "%s is UNTESTED: %s is not installed; `make test` installs it, or install the package %s"
	if os.Getenv("CI") != "" {
		tb.Fatalf(text, tb.Name(), binary, pkg)
	}
	tb.Skipf(text, tb.Name(), binary, pkg)
}
