package dsync_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```")

// squeezed is code without its indentation and its empty lines.
func squeezed(code []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(code) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			out.Write(append(line, '\n'))
		}
	}
	return out.Bytes()
}

// TestDocs looks for the code of the pages in docs in files of Go, where `make lint` compiles it. A whole program is compiled here; that of the
// README, and what conformance/README.md has, tests of their own look at.
func TestDocs(t *testing.T) {
	var sources [][]byte
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages %q: %v", pages, err)
	}
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go"):
			text, err := os.ReadFile(path)
			sources = append(sources, squeezed(text))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range goBlock.FindAllSubmatch(text, -1) {
			blocks++
			if bytes.HasPrefix(block[1], []byte("package main\n")) {
				buildMain(t, page, block[1])
			} else if !isIn(sources, squeezed(block[1])) {
				t.Errorf("%s: no file of Go has the code\n%s", page, block[1])
			}
		}
		checkLinks(t, page, text)
	}
	if blocks < 10 {
		t.Errorf("%d blocks of code in %q", blocks, pages)
	}
}

func isIn(sources [][]byte, code []byte) bool {
	for _, s := range sources {
		if bytes.Contains(s, code) {
			return true
		}
	}
	return false
}

func buildMain(t *testing.T, page string, code []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", file) // with this module's go.mod
	cmd.Env = append(os.Environ(), "LOCKS=memory://")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("token 1")) {
		t.Errorf("%s: the program: %v\n%s", page, err, out)
	}
}

// checkLinks looks for the files and headings that a page links to.
func checkLinks(t *testing.T, page string, text []byte) {
	t.Helper()
	for _, m := range regexp.MustCompile(`\]\(([^):\s]*)\)`).FindAllSubmatch(text, -1) {
		file, heading, _ := strings.Cut(string(m[1]), "#")
		target := page
		if file != "" {
			target = filepath.Join(filepath.Dir(page), file)
		}
		if info, err := os.Stat(target); err != nil {
			t.Errorf("%s links to %s: %v", page, m[1], err)
		} else if heading != "" && !info.IsDir() && !hasHeading(t, target, heading) {
			t.Errorf("%s links to %s, which has no such heading", page, m[1])
		}
	}
}

// hasHeading reports whether a page has a heading with this anchor, as GitHub makes them.
func hasHeading(t *testing.T, page, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllSubmatch(text, -1) {
		words := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		if strings.ReplaceAll(words, " ", "-") == anchor {
			return true
		}
	}
	return false
}
