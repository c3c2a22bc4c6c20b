package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// completed returns the completions of the last argument, and whether files are
// offered.
func completed(t *testing.T, args ...string) (offers []string, files bool) {
	t.Helper()
	var out, errs bytes.Buffer
	status := run(t.Context(), append([]string{"__completeNoDesc"}, args...), nil, &out, &errs)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	if status != cli.ExitDone || !strings.HasPrefix(last, ":") {
		t.Fatalf("%q: got status %d, %s%s", args, status, out.String(), errs.String())
	}
	if strings.Contains(out.String()+errs.String(), testenv.PasswordMark) {
		t.Errorf("%q: a password is shown: %s%s", args, out.String(), errs.String())
	}
	return lines[:len(lines)-1], last == ":0"
}

// TestCompletion checks the completions for shells. They must not depend on the
// environment.
func TestCompletion(t *testing.T) {
	t.Setenv("DSYNC_URL", "redisson://user:"+testenv.PasswordMark+"@127.0.0.1:1")
	t.Setenv("DSYNC_FROM", "redisson://user:"+testenv.PasswordMark+"@127.0.0.1:1")
	for _, test := range []struct {
		args  string // a trailing space stands for an empty argument
		want  string // some of the completions that are required
		files bool
	}{
		{"", "bench", false},
		{"r", "run", false},
		{"migrate ", "plan", false},
		{"completion ", "fish", false},
		{"help do", "doctor", false},
		{"show --wa", "--watch", false},
		{"show --url ", "redisson://", false},
		{"show --url et", "etcd://", false},
		{"show --url redisson://", "", false},
		{"show --url=z", "zk://", false},
		{"migrate plan --from p", "pglock://", false},
		{"bench ", "etcd://", false},
		{"doctor re", "redlock://", false},
		{"doctor etcd://a ", "", false},
		{"ls --url-file ", "", true},
		{"migrate seal --names ", "", true},
		{"show --connect ", "", false},
		{"bench --prefix ", "", false},
		{"show ", "", false},
		{"run ", "", false},
		{"run x -- ", "", true},
		{"run x -- cat ", "", true},
	} {
		offers, files := completed(t, strings.Split(test.args, " ")...)
		if test.want != "" && !slices.Contains(offers, test.want) || test.want == "" && len(offers) > 0 || files != test.files {
			t.Errorf("%q: got %q, files %t, want %q, files %t", test.args, offers, files, test.want, test.files)
		}
		if slices.Contains(offers, "guard") || slices.Contains(offers, "memory://") {
			t.Errorf("%q: got %q", test.args, offers)
		}
	}
}

func TestCompletionScripts(t *testing.T) {
	p := &two{t: t}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		p.bare("completion", shell).want(cli.ExitDone, "dsync", "__complete")
		p.bare("completion", shell, "x").want(cli.ExitUsage, "takes no arguments")
	}
	var out, errs bytes.Buffer
	run(t.Context(), []string{"__complete", "run", "--note"}, nil, &out, &errs)
	if want := "--note\tTEXT to store"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("got %q, want %q, without back quotes", out.String(), want)
	}
	p.bare("completion", "tcsh").want(cli.ExitUsage, "no command tcsh")
}

// TestCompletionInBash lets bash complete a line with the script and the
// required part of the package bash-completion.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	program, _, _ := testenv.Program(t)
	dir := t.TempDir()
	if err := os.Symlink(program.Path, filepath.Join(dir, "dsync")); err != nil {
		t.Fatal(err)
	}
	const script = `_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${words[cword]}; prev=${words[cword-1]}; }
source <(dsync completion bash)
COMP_WORDS=(dsync mig); COMP_CWORD=1; COMP_LINE="dsync mig"; COMP_POINT=${#COMP_LINE}
$(complete -p dsync | sed 's/.*-F \([^ ]*\).*/\1/') dsync mig dsync
printf '%s\n' "${COMPREPLY[@]}"`
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "-c", script)
	cmd.Env = append(program.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.Output() // outside of a completion, bash reports on standard error that compopt has no effect
	if err != nil || strings.TrimSpace(string(out)) != "migrate" {
		t.Errorf("%v: got %q, want migrate", err, out)
	}
}

// acts are serve, whose pages are for browsers, and the commands that change
// something and report the result by their exit status.
var acts = []string{"dsync", "run", "release", "serve", "help", "completion", "bash", "zsh", "fish", "powershell"}

// TestCommands checks the properties that all commands share.
func TestCommands(t *testing.T) {
	page := clitest.Page(t, "docs/command.md")
	everyCommand(newRoot(io.Discard), func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		if !strings.HasPrefix(c.Example, "  ") || !strings.Contains(c.Example, "dsync") {
			t.Errorf("%s: the help has no example, or an example without an indent: %q", c.CommandPath(), c.Example)
		}
		if has, want := c.Flag("json") != nil, !slices.Contains(acts, c.Name()); has != want {
			t.Errorf("%s: --json is %t, want %t", c.CommandPath(), has, want)
		}
		_, table, has := strings.Cut(c.Long, "\nExit status\n")
		for line := range strings.Lines(table) {
			fields := strings.Fields(line)
			of := "the others"
			if c.Name() == "run" {
				of = "`dsync run`"
			}
			known := len(fields) > 0 && strings.Contains(page, fmt.Sprintf("| %s | %s |", of, fields[0]))
			if strings.TrimSpace(line) == "" {
				break
			} else if !known {
				t.Errorf("%s: the table of statuses does not know %q", c.CommandPath(), line)
			}
		}
		if has && table == "" {
			t.Errorf("%s: no statuses below their heading", c.CommandPath())
		}
	})
}
