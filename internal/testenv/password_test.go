package testenv_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// scanned is a package with a test that logs a word, and a test that may fail.
const scanned = `package x

import (
	"strings"
	"testing"
)

func TestPasses(t *testing.T)  { t.Log(strings.Repeat("x", 4080) + "WORD") }
func TestSkips(t *testing.T)   { t.Skip("there is no server") }
func TestOutcome(t *testing.T) { if FAILS { t.Error("what is wrong") } }
`

// TestScriptForTests runs the script behind `make test`. The password is in the
// log of a passing test, in a line that go test splits.
func TestScriptForTests(t *testing.T) {
	script, err := filepath.Abs("../../.ci/test")
	if err != nil {
		t.Fatal(err)
	}
	password := testenv.Password()
	for _, test := range []struct {
		name, word, fails string
		ok                bool
		want              []string
	}{
		{"passes", "nothing", "false", true, []string{"DONE 3 tests, 1 skipped in ", "there is no server"}},
		{"fails", "nothing", "true", false, []string{"FAIL: . TestOutcome", "what is wrong"}},
		{"does not compile", "nothing", "maybe", false, []string{"undefined: maybe"}},
		{"shows a password", password, "false", false, []string{"FAIL: passwords of the tests are shown in\nx: ", "DONE 3 tests"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			text := strings.NewReplacer("WORD", test.word, "FAILS", test.fails).Replace(scanned)
			for file, text := range map[string]string{"x_test.go": text, "go.mod": "module x\n\ngo 1.25.0\n"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), script, "go", "test", "-json", "./...")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
			out, err := cmd.CombinedOutput()
			said := strings.ReplaceAll(string(out), password, "PASSWORD") // this test's output is searched, too
			if (err == nil) != test.ok {
				t.Errorf("got %v:\n%s", err, said)
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("the output lacks %q:\n%s", want, said)
				}
			}
		})
	}
}

// literalPassword finds URLs with a literal password. A password inserted by +
// or %s comes from testenv.
var literalPassword = regexp.MustCompile(`://[^/@"'` + "`" + ` ]*:([^/@"'` + "`" + ` ]{2,})@`)

// exempt lists tests of URLs that search for their own passwords.
var exempt = []string{"driver/url_test.go", "internal/testenv/password_test.go"}

// TestNoPasswordIsWrittenOut checks the sources, because the script could not
// find a literal password.
func TestNoPasswordIsWrittenOut(t *testing.T) {
	root := filepath.Join("..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		name, _ := filepath.Rel(root, path)
		for _, e := range exempt {
			if filepath.ToSlash(name) == e {
				return nil
			}
		}
		text, err := os.ReadFile(path)
		for _, found := range literalPasswords(string(text)) {
			t.Errorf("%s: the password in %q is not from testenv.Password", name, found)
		}
		return err
	})
	if err != nil || files < 50 {
		t.Errorf("looked at %d files: %v", files, err)
	}
}

func literalPasswords(text string) []string {
	var all []string
	for _, found := range literalPassword.FindAllStringSubmatch(text, -1) {
		if found[1] != "%s" && found[1] != "PASSWORD" {
			all = append(all, found[0])
		}
	}
	return all
}

func TestLiteralPasswords(t *testing.T) {
	for text, want := range map[string]bool{
		`"redisson://user:abc@h"`:               true,
		`"redisson://:abc@h"`:                   true,
		`"redisson://user:" + password + "@h"`:  false,
		`"redisson://user:%s@%s"`:               false,
		`"redisson://h:6379/0"`:                 false,
		`"redisson://user@h:6379", "a:b@c.org"`: false,
	} {
		if got := literalPasswords(text); len(got) > 0 != want {
			t.Errorf("%s: got %q, want a finding: %t", text, got, want)
		}
	}
}
