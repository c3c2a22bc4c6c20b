//go:build unix

package filelock_test

import (
	"bytes"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// outside makes a module outside of the repository, like the module of a third
// party, and returns its directory.
func outside(t *testing.T, module string, files map[string]string) (dir string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	mod := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllLiteralString(read(t, root+"/go.mod"), "module "+module)
	files["go.mod"] = mod + "\nrequire github.com/go-dsync/dsync v0.0.0\n\nreplace github.com/go-dsync/dsync => " + root + "\n"
	files["go.sum"] = read(t, root+"/go.sum")
	dir = t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// goTest runs the tests of the module in dir.
func goTest(t *testing.T, dir, run string) (out []byte, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-v", "-count=1", "-run", run, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off")
	return cmd.CombinedOutput()
}

// The driver also passes the suite in its own module, because it uses no
// internals of dsync.
func TestConformanceOutsideOfTheRepository(t *testing.T) {
	t.Parallel()
	const here, there = "github.com/go-dsync/dsync/examples/filelock", "example.com/filelock"
	files := map[string]string{}
	for _, name := range []string{"filelock.go", "filelock_test.go"} {
		files[name] = strings.ReplaceAll(read(t, name), here, there)
	}
	out, err := goTest(t, outside(t, there, files), "^TestConformance$")
	if err != nil || !bytes.Contains(out, []byte(" promises kept, 0 broken")) {
		t.Errorf("go test in a module outside of the repository: %v\n%s", err, out)
	}
}

// The starting point for authors in conformance/README.md compiles, and the
// suite guides them from there.
func TestBeginningOfTheReadme(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for _, block := range regexp.MustCompile("(?s)`(mydriver\\w*\\.go)`.*?```go\n(.*?)```").FindAllStringSubmatch(read(t, "../../conformance/README.md"), -1) {
		files[block[1]] = block[2]
		if formatted, err := format.Source([]byte(block[2])); err != nil || string(formatted) != block[2] {
			t.Errorf("%s is not formatted: %v", block[1], err)
		}
	}
	if len(files) != 2 {
		t.Fatalf("the page shows %d files, want mydriver.go and mydriver_test.go", len(files))
	}
	out, err := goTest(t, outside(t, "example.com/mydriver", files), "^TestConformance$/^exclusion$/^free$")
	if err == nil || !bytes.Contains(out, []byte("broken promise: A free name is granted immediately")) || !bytes.Contains(out, []byte("not written yet")) {
		t.Errorf("go test of a driver that is not written: %v\n%s", err, out)
	}
}
