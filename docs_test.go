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

	"github.com/go-dsync/dsync/internal/testenv"
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

// TestDocs checks that the code of the pages in docs and of the README is
// contained in Go files, which `make lint` compiles. It runs whole programs.
// Other tests run the program of the README, the code of conformance/README.md,
// the minimal rights in docs/backends, and the runbooks of docs/migration.md.
func TestDocs(t *testing.T) {
	var sources [][]byte
	pages, err := filepath.Glob("docs/*.md")
	backends, _ := filepath.Glob("docs/backends/*.md")
	if err != nil || len(pages) == 0 || len(backends) == 0 {
		t.Fatalf("pages %q, %q: %v", pages, backends, err)
	}
	pages = append(pages, backends...)
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
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range goBlock.FindAllSubmatch(text, -1) {
			blocks++
			if program := bytes.HasPrefix(block[1], []byte("package main\n")); program && page != "README.md" {
				runMain(t, block[1], "memory://")
			} else if !program && !isIn(sources, squeezed(block[1])) {
				t.Errorf("%s: no Go file contains the code\n%s", page, block[1])
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

// runMain runs a program that acquires a lock on the backend of a URL.
func runMain(t *testing.T, code []byte, url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", file) // with this module's go.mod
	cmd.Env = append(os.Environ(), "LOCKS="+url)
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("locked, with token")) {
		t.Errorf("the program on %s: %v\n%s", url, err, out)
	}
}

// TestCommandsOfChoosing runs the commands for the program of docs/choosing.md
// in an empty directory.
func TestCommandsOfChoosing(t *testing.T) {
	page, err := os.ReadFile("docs/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	program, commands := goBlock.FindSubmatch(page), regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindSubmatch(page)
	if program == nil || commands == nil {
		t.Fatal("docs/choosing.md has no program, or no commands")
	}
	if out := shell(t, string(commands[1]), program[1]); !strings.Contains(out, "locked, with token") {
		t.Errorf("it wrote %s", out)
	}
}

// TestQuickStarts runs the program of docs/choosing.md on a server of each
// kind, with the import and the URL from the table there. The address in the
// URL leads to the test's server.
func TestQuickStarts(t *testing.T) {
	testenv.Long(t)
	page, err := os.ReadFile("docs/choosing.md")
	if err != nil {
		t.Fatal(err)
	}
	program := goBlock.FindSubmatch(page)
	if program == nil {
		t.Fatal("docs/choosing.md has no program")
	}
	addresses := map[string]func(*testing.T) []string{
		"memory":   func(*testing.T) []string { return nil },
		"redisson": func(t *testing.T) []string { return []string{testenv.Redis(t).Addr} },
		"redlock": func(t *testing.T) []string {
			return []string{testenv.Redis(t).Addr, testenv.Redis(t).Addr, testenv.Redis(t).Addr}
		},
		"etcd":   func(t *testing.T) []string { return []string{testenv.Etcd(t).Addr} },
		"zk":     func(t *testing.T) []string { return []string{testenv.ZooKeeper(t).Addr} },
		"pglock": func(t *testing.T) []string { return []string{testenv.Postgres(t).Addr} },
	}
	rows := regexp.MustCompile("(?m)^\\|.*\\| `([a-z]+://[^`]*)` \\| `drivers/([a-z]+)` \\|$").FindAllSubmatch(page, -1)
	tried := map[string]bool{}
	for _, row := range rows {
		url, name := string(row[1]), string(row[2])
		if addresses[name] == nil {
			t.Errorf("no server for %s", url)
			continue
		}
		if tried[name] {
			continue // the tests have no Valkey
		}
		tried[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := addresses[name](t)
			url := regexp.MustCompile(`localhost:\d+`).ReplaceAllStringFunc(url, func(string) string {
				address := servers[0]
				servers = servers[1:]
				return address
			})
			runMain(t, bytes.Replace(program[1], []byte("drivers/memory"), []byte("drivers/"+name), 1), url)
		})
	}
	if len(tried) != len(addresses) {
		t.Errorf("the table has rows for %d drivers, want %d", len(tried), len(addresses))
	}
}

// checkLinks checks that the files and headings exist to which a page links.
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

// hasHeading reports whether a page has a heading with this anchor, in GitHub's
// form.
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
