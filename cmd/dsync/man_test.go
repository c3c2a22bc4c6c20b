package main

import (
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var manPages = flag.String("man", "", "write the man pages to this `directory`")

// TestManPages generates a man page for each command; `make man` keeps them. It
// is a test so that the program does not contain the generator.
func TestManPages(t *testing.T) {
	dir := *manPages
	if dir == "" {
		dir = t.TempDir()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root := newRoot(io.Discard)
	root.Long = "Dsync runs commands under locks, shows who holds which, and moves locks from one backend to another."
	pages := 0
	everyCommand(root, func(c *cobra.Command) {
		if !c.Hidden {
			c.Long = asMarkdown(c.Long)
			c.DisableAutoGenTag = true
			pages++
		}
	})
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "dsync", Manual: "dsync"}, dir); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "dsync*.1"))
	if err != nil || len(files) < pages-1 { // the command help has no page
		t.Errorf("%d pages (%v) of %d commands", len(files), err, pages)
	}
	page, err := os.ReadFile(filepath.Join(dir, "dsync-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".SH NAME\ndsync-run - Run a command under a lock", ".SH EXIT STATUS\n", "\n     75  another client held the lock", ".SH EXAMPLE\n", "--kill-after", "DSYNC_TOKEN"} {
		if !strings.Contains(strings.ReplaceAll(string(page), `\-`, "-"), want) {
			t.Errorf("dsync-run.1 lacks %q:\n%s", want, page)
		}
	}
}

// TestProgramHasNoGenerator checks that no program contains the generator of
// the man pages.
func TestProgramHasNoGenerator(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil || !strings.Contains(string(out), "spf13/cobra\n") {
		t.Fatalf("%v: %s", err, out)
	}
	if found := regexp.MustCompile(`(?m)^.*(md2man|blackfriday|yaml|cobra/doc).*$`).FindString(string(out)); found != "" {
		t.Errorf("the program depends on %s", found)
	}
}

// everyCommand calls f with a command and all its subcommands.
func everyCommand(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, below := range c.Commands() {
		everyCommand(below, f)
	}
}

var special = regexp.MustCompile("[\\\\`*_{}\\[\\]<>~|]")

// asMarkdown returns a help text in the form from which pages are made.
// Indented text stays as it is.
func asMarkdown(text string) string {
	var out strings.Builder
	indented := false
	for line := range strings.Lines(text) {
		switch {
		case line == "\n":
			out.WriteString(line)
			continue
		case line[0] == ' ' || line[0] == '\t':
			if !indented {
				out.WriteString("\n")
			}
			indented = true
			out.WriteString("    " + line)
			continue
		case indented:
			out.WriteString("\n")
		}
		indented = false
		if line == "Exit status\n" {
			line = "\n# EXIT STATUS\n"
		}
		out.WriteString(special.ReplaceAllString(line, `\$0`))
	}
	return out.String()
}
