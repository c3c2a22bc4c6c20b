package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// source is a package with tests of all kinds. SHOWN is where one may show a password.
const source = `package x

import (
	"fmt"
	"os"
	"testing"
)

func TestPasses(t *testing.T)  { t.Log("heard SHOWN only here") }
func TestPrints(t *testing.T)  { fmt.Println("printed"); fmt.Fprintln(os.Stderr, "on standard error") }
func TestSkips(t *testing.T)   { t.Skip("skipped") }
func TestInside(t *testing.T)  { t.Run("part", func(t *testing.T) { t.Log("inside") }) }
func TestOutcome(t *testing.T) { if FAILS { t.Error("what is wrong") } }
`

// TestRun compares with what go test itself does.
func TestRun(t *testing.T) {
	password := testenv.Password()
	for _, test := range []struct {
		name, shown, fails string
		found              bool
		code               int
	}{
		{"passes", "nothing", "false", false, 0},
		{"fails", "nothing", "true", false, 1},
		{"does not compile", "nothing", "maybe", false, 1},
		{"shows a password", password, "false", true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			text := strings.NewReplacer("SHOWN", test.shown, "FAILS", test.fails).Replace(source)
			for file, text := range map[string]string{"x_test.go": text, "go.mod": "module x\n\ngo 1.25.0\n"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			var stdout, stderr bytes.Buffer
			if code := run([]string{"go", "test", "-json", "./..."}, &stdout, &stderr); code != test.code {
				t.Errorf("exit code: got %d, want %d", code, test.code)
			}
			if found := strings.Contains(stderr.String(), "TestPasses: x_test.go:9: heard "+password); found != test.found {
				t.Errorf("the password is found: got %t, want %t:\n%s", found, test.found, hidden(stderr.String()))
			}
			plain, _ := exec.Command("go", "test", "./...").CombinedOutput()
			for line := range strings.Lines(string(plain)) {
				line = strings.TrimSpace(times(line))
				if all := times(stdout.String() + stderr.String()); !strings.Contains(all, line) {
					t.Errorf("%q is not shown in\n%s", line, hidden(all))
				}
			}
			if strings.Contains(stdout.String(), "heard ") {
				t.Errorf("what a test has logged that passes is shown:\n%s", hidden(stdout.String()))
			}
		})
	}
}

func TestRunOfNothing(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{"/does/not/exist"}, &stdout, &stderr); code != 1 || stderr.Len() == 0 {
		t.Errorf("got exit code %d and %q, want 1 and why", code, stderr.String())
	}
}

// TestSummary looks at what is said of a run at its end.
func TestSummary(t *testing.T) {
	script := `end() { printf '{"Action":"%s","Package":"github.com/go-dsync/dsync/p%s","Test":"%s","Elapsed":%s}\n' "$@"; }
says() { printf '{"Action":"output","Package":"github.com/go-dsync/dsync/p","Test":"%s","Output":"    x_test.go:1: %s\\n"}\n' "$@"; }
end pass "" TestA/one 0.2; end pass "" TestA/two 3.5; end pass "" TestA 3.7
says TestB "no server: none"; end skip "" TestB 0
for i in 1 2 3 4; do says TestC/$i "left out"; end skip "" TestC/$i 0; done; end pass "" TestC 0
end fail "" "" 4.5; end skip /none "" 0`
	var stdout, stderr bytes.Buffer
	run([]string{"sh", "-c", script}, &stdout, &stderr)
	got := strings.Join(strings.Fields(stdout.String()), " ")
	for _, want := range []string{
		"seconds tests skipped package 4.5 7 5 p ",
		"slowest tests 3.5 p TestA/two 0.2 p TestA/one ",
		"skipped reason 4 left out: p TestC/1, p TestC/2, p TestC/3, … 1 no server: p TestB 7 tests of 1 packages, 5 of them skipped, took ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in the summary:\n%s%s", want, stdout.String(), stderr.String())
		}
	}
}

// TestLineInPieces: go test cuts long lines, and a password may be where it does.
func TestVerbose(t *testing.T) {
	var stdout, stderr bytes.Buffer
	script := `printf '{"Action":"%s","Package":"p","Test":"T","Output":"heard it\\n"}\n' output pass`
	for args, want := range map[string]string{"-v": "heard it\n", "-x": ""} {
		stdout.Reset()
		if code := run([]string{"sh", "-c", script, args}, &stdout, &stderr); code != 0 || stdout.String() != want {
			t.Errorf("%s: got exit code %d, %q and %q; want 0 and %q", args, code, stdout.String(), stderr.String(), want)
		}
	}
}

func TestLineInPieces(t *testing.T) {
	password := testenv.Password()
	for _, test := range []struct {
		script string
		code   int
		found  bool
	}{
		{`printf '{"Action":"output","Package":"p","Output":"%s"}\n' ` + password[:4] + " " + password[4:], 1, true},
		{`echo "warning: ` + password + `"`, 1, true},
		{`echo "warning: ` + password + `" >&2; exit 7`, 7, true},
		{`exit 3`, 3, false},
		{`kill -9 $$`, 1, false},
	} {
		var stdout, stderr bytes.Buffer
		code := run([]string{"sh", "-c", test.script}, &stdout, &stderr)
		found := strings.Contains(stderr.String(), "FAIL: passwords")
		if code != test.code || found != test.found {
			t.Errorf("%s: got exit code %d, found %t; want %d, %t", hidden(test.script), code, found, test.code, test.found)
		}
	}
}

// hidden makes a text fit for the log of this test.
func hidden(text string) string { return strings.ReplaceAll(text, testenv.PasswordMark, "***") }

// times replaces what differs from run to run.
func times(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		for i, f := range fields {
			if strings.HasSuffix(strings.Trim(f, "()"), "s") && strings.ContainsAny(f, "0123456789") || f == "(cached)" {
				fields[i] = "TIME"
			}
		}
		lines = append(lines, strings.Join(fields, " "))
	}
	return strings.Join(lines, "\n")
}
