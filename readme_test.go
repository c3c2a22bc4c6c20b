package dsync_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestREADME runs the program in the README as a user would, in a separate
// module, and looks for the commands it names.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if program == nil {
		t.Fatal("README.md has no Go program")
	}
	setUp := regexp.MustCompile("(?s)```sh\n(.*?)```").FindSubmatch(readme)
	if setUp == nil {
		t.Fatal("README.md has no commands")
	}
	if out := shell(t, string(setUp[1])+"go run .", program[1]); !strings.Contains(out, "<nil>") {
		t.Errorf("the program of the README:\n%s", out)
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

// shell runs the commands of a page in an empty directory, with a program in
// main.go and a proxy that serves this tree as a released version.
func shell(t *testing.T, commands string, program []byte) (out string) {
	t.Helper()
	watchSources(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), program, 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(known))
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", commands)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GONOSUMDB=*", "GOMODCACHE="+t.TempDir(),
		"GOPROXY=file://"+release(t)+",file://"+filepath.Join(words[0], "cache", "download")+","+words[1])
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", commands, err, text)
	}
	return string(text)
}

// release returns a module proxy with one version of the library, which is this
// tree.
func release(t *testing.T) (dir string) {
	t.Helper()
	const version = "v0.1.0"
	dir = t.TempDir()
	at := filepath.Join(dir, filepath.FromSlash(module), "@v")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if _, err := os.Stat(filepath.Join(path, "go.mod")); path != "." && (err == nil || strings.HasPrefix(entry.Name(), ".")) {
				return fs.SkipDir // a separate module
			}
			return nil
		case !entry.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		w, err := archive.Create(module + "@" + version + "/" + filepath.ToSlash(path))
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	if err := errors.Join(err, archive.Close()); err != nil {
		t.Fatal(err)
	}
	requires, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": []byte(`{"Version":"` + version + `","Time":"2026-01-01T00:00:00Z"}`),
		version + ".mod": requires, version + ".zip": packed.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
