package testenv

import (
	"fmt"
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
	untested(tb, fmt.Sprintf("%s is not installed; `make test` installs it, or install the package %s", binary, pkg))
}

// untested fails the test if CI is set, and skips it otherwise.
func untested(tb testing.TB, why string) {
	tb.Helper()
	const text = "%s is UNTESTED: %s"
	if os.Getenv("CI") != "" {
		tb.Fatalf(text, tb.Name(), why)
	}
	tb.Skipf(text, tb.Name(), why)
}

// Promtool returns the path of the tool that tests rules of Prometheus.
func Promtool(tb testing.TB) string {
	tb.Helper()
	return need(tb, "promtool", "prometheus")
}
