//go:build unix

package filelock_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The driver in a module of its own, as third parties have it, passes the suite too: nothing of it needs to be inside of dsync.
func TestConformanceOutsideOfTheRepository(t *testing.T) {
	t.Parallel()
	const here, there = "github.com/go-dsync/dsync/examples/filelock", "example.com/filelock"
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	copyFile := func(from, to string, change func(string) string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), []byte(change(string(b))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	moved := func(s string) string { return strings.ReplaceAll(s, here, there) }
	copyFile("filelock.go", "filelock.go", moved)
	copyFile("filelock_test.go", "filelock_test.go", moved)
	copyFile(filepath.Join(root, "go.sum"), "go.sum", func(s string) string { return s })
	copyFile(filepath.Join(root, "go.mod"), "go.mod", func(s string) string {
		s = regexp.MustCompile(`(?m)^module .*$`).ReplaceAllLiteralString(s, "module "+there)
		return s + "\nrequire github.com/go-dsync/dsync v0.0.0\n\nreplace github.com/go-dsync/dsync => " + root + "\n"
	})

	cmd := exec.CommandContext(t.Context(), "go", "test", "-v", "-count=1", "-run", "^TestConformance$", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(" promises kept, 0 broken")) {
		t.Errorf("go test in a module outside of the repository: %v\n%s", err, out)
	}
}
