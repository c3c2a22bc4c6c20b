package dsync_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestREADME runs the program in the README as a user would, in a module of its own, and looks for the commands it names.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if program == nil {
		t.Fatal("README.md has no Go program")
	}
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", string(program[1]))
	write("go.mod", "module example.com/readme\n\ngo 1.25.0\n\nrequire github.com/go-dsync/dsync v0.0.0\n\n"+
		"replace github.com/go-dsync/dsync => "+root+"\n")
	cmd := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "<nil>") {
		t.Errorf("the program of the README: %v\n%s", err, out)
	}

	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)`?make ([a-z-]+)").FindAllSubmatch(readme, -1) {
		if !regexp.MustCompile(`(?m)^` + string(m[1]) + `:`).Match(makefile) {
			t.Errorf("README.md names `make %s`, which the Makefile does not have", m[1])
		}
	}
	checkLinks(t, "README.md", readme)
}
