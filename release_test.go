package dsync_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRelease runs .ci/release on a repository that can be released, and on
// repositories that cannot.
func TestRelease(t *testing.T) {
	script, err := filepath.Abs(".ci/release")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, version, spoil, want string
	}{
		{"good", "v0.2.0", "", "git tag -a $module/v0.2.0"},
		{"a version without v", "0.2.0", "", "not of the form"},
		{"older", "v0.0.9", "", "not newer than v0.1.0"},
		{"tagged", "v0.2.0", "git tag cmd/dsync/v0.2.0", "there is a tag cmd/dsync/v0.2.0"},
		{"not committed", "v0.2.0", "touch new", "not committed"},
		{"another branch", "v0.2.0", "git checkout -qb other", "not the branch main"},
		{"no section in the changelog", "v0.3.0", "", "no heading '## 0.3.0 - "},
		{"a section without version", "v0.2.0", "echo '## Unreleased' >> CHANGELOG.md; git commit -qam x", "still has a heading"},
		{"replace", "v0.2.0", "echo 'replace a => ../a' >> cmd/dsync/go.mod; git commit -qam x", "cmd/dsync/go.mod has a replace"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			run := func(command string, env ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), append(env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
					"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")...)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			setUp := `set -e; git init -q -b main; mkdir -p cmd/dsync; echo 'module a' | tee go.mod > cmd/dsync/go.mod; touch LICENSE
				printf '## 0.2.0 - 2026-12-01\n' > CHANGELOG.md; git add .; git commit -qm x; git tag v0.1.0; git tag cmd/dsync/v0.1.0
				` + test.spoil
			if out, err := run(setUp); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := run(script+" "+test.version, "CHECKED=yes")
			if !strings.Contains(out, test.want) || (err == nil) != (test.name == "good") {
				t.Errorf("%v, want %q in\n%s", err, test.want, out)
			}
		})
	}
}
