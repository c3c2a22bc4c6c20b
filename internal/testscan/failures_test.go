package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFailures has packages that fail in each way, and looks at what is said of them after all else.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const head = "package x\n\nimport (\"fmt\"; \"os\"; \"sync\"; \"testing\")\n\nvar _, _ = fmt.Sprint(os.Args), new(sync.Mutex)\n\n"
	write("go.mod", "module x\n\ngo 1.25.0\n")
	write("passes/x_test.go", head+`func TestGood(t *testing.T) { fmt.Println("panic: only printed") }`)
	write("fails/x_test.go", head+`func TestOuter(t *testing.T) {
		t.Run("good", func(*testing.T) {})
		t.Run("bad", func(t *testing.T) { t.Error("no\nfor this reason\nand more") })
	}`)
	write("panics/x_test.go", head+`func TestPanics(t *testing.T) { var p *int; *p = 1 }`)
	write("dies/x_test.go", head+`func TestDies(t *testing.T) { new(sync.Mutex).Unlock() }`)
	write("exits/x_test.go", head+`func TestMain(m *testing.M) { m.Run(); fmt.Println("something is left"); os.Exit(1) }`)
	write("broken/x_test.go", head+`func TestBroken(t *testing.T) { undefined() }`)
	t.Chdir(dir)
	for _, argv := range [][]string{{"go", "test", "-json", "./..."}, {"go", "test", "-json", "-v", "./..."}} {
		var stdout, stderr bytes.Buffer
		if code := run(argv, &stdout, &stderr); code == 0 {
			t.Errorf("%q: exit code 0", argv)
		}
		_, said, _ := strings.Cut(stdout.String(), "processors worked")
		_, said, _ = strings.Cut(said, "\n")
		got := map[string]string{}
		for part := range strings.SplitSeq(said, "\nFAILED: ") {
			name, text, _ := strings.Cut(part, "\n")
			got[name] = text
		}
		for name, want := range map[string][]string{
			"x/fails":  {"  failed: TestOuter/bad\n", ": no\n            for this reason\n"},
			"x/panics": {"  failed: TestPanics\n  in TestPanics:\n    panic: runtime error: invalid memory address", "x_test.go:7"},
			"x/dies":   {"  did not end: TestDies\n  in TestDies:\n    fatal error: sync: unlock of unlocked mutex\n"},
			"x/exits":  {"    something is left\n"},
			"x/broken": {"undefined: undefined\n"},
		} {
			text, ok := got[name]
			delete(got, name)
			for _, part := range want {
				if !ok || !strings.Contains(text, part) {
					t.Errorf("%q says of %s %q, want %q", argv, name, text, part)
				}
			}
			if strings.Count(text, "\n") > 2+2*(shownLines+1) {
				t.Errorf("%q says %d lines of %s", argv, strings.Count(text, "\n"), name)
			}
		}
		delete(got, "")
		if len(got) > 0 {
			t.Errorf("%q says more: %q", argv, got)
		}
	}
}

// TestFailuresAreFew has more of everything than is shown.
func TestFailuresAreFew(t *testing.T) {
	f := newFailures()
	for range shownCrashes + 1 {
		for range 2 * shownLines {
			f.add(event{Action: "output", Package: "p", Output: "WARNING: DATA RACE\n"})
		}
	}
	for i := range shownNames + 5 {
		name := fmt.Sprintf("TestA%d", i)
		for range 2 * shownLogged {
			f.add(event{Action: "output", Package: "p", Test: name, Output: "    x_test.go:1: " + strings.Repeat("long", shownWidth) + "\n"})
		}
		f.add(event{Action: "fail", Package: "p", Test: name})
	}
	f.add(event{Action: "fail", Package: "p"})
	var out bytes.Buffer
	f.write(&out)
	n, want := strings.Count(out.String(), "\n"), 2+shownNames+shownReasons*shownLogged+1+shownCrashes*shownLines
	if n != want || !strings.Contains(out.String(), "… and 5 more\n") {
		t.Errorf("%d lines, want %d:\n%s", n, want, out.String())
	}
}
