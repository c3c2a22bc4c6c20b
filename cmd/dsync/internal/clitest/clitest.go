// Package clitest provides helpers for the tests of several commands.
package clitest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// Main runs the tests of a package, ignoring URLs in the environment.
func Main(m *testing.M) {
	for _, variable := range []string{"DSYNC_URL", "DSYNC_FROM", "DSYNC_TO"} {
		os.Unsetenv(variable)
	}
	testenv.NoLeaks(m)
}

// Run runs a command in this process and returns its output.
func Run(ctx context.Context, c *cobra.Command, args ...string) (string, error) {
	var out strings.Builder
	c.SetArgs(args)
	c.SetOut(&out)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.ExecuteContext(ctx)
	return out.String(), err
}

// Client returns a client on the backend of a URL. It is closed at the end of
// the test.
func Client(t *testing.T, url string) *dsync.Client {
	t.Helper()
	c, err := dsync.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	CloseLater(t, c)
	return c
}

// CloseLater closes a client at the end of the test.
func CloseLater(t *testing.T, c *dsync.Client) {
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// Lock acquires a lock.
func Lock(t *testing.T, l dsync.Locker, name string) *dsync.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// WantPicture fails the test unless docs/operations.md contains the text.
func WantPicture(t *testing.T, text string) {
	t.Helper()
	if !strings.Contains(Page(t, "docs/operations.md"), "\n"+text) {
		t.Errorf("docs/operations.md does not show\n%s", text)
	}
}

// Page returns a page of the documentation.
func Page(t *testing.T, path string) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	page, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}
