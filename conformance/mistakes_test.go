package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	mistakesFlag = flag.Bool("mistakes", false, "run the suite on all mistakes of testdata/mistakes.txt instead of only two")
	recordFlag   = flag.Bool("mistakes.record", false, "write the outcomes into testdata/mistakes.txt")
	repeatFlag   = flag.Int("mistakes.repeat", 1, "count a mistake as caught only if its check fails in each of `N` runs")
)

const mistakesFile = "testdata/mistakes.txt"

// mistake is a change to one file of drivers/memory. It is a block of
// mistakesFile.
type mistake struct {
	name, class, outcome string
	what                 string
	file                 string
	before, after        string
}

// The outcomes of a mistake that no check catches, and of a mistake that has
// not been run.
const (
	missed  = "missed"
	unknown = "?"
)

// parseMistake parses a block into a mistake.
func parseMistake(block string) (m mistake, err error) {
	lines := strings.Split(block, "\n")
	if len(lines) < 4 {
		return m, fmt.Errorf("a block of %d lines: %q", len(lines), block)
	}
	if n, _ := fmt.Sscan(lines[0], &m.name, &m.class, &m.outcome); n < 3 {
		return m, fmt.Errorf("a block begins with %q", lines[0])
	}
	m.what, m.file = lines[1], lines[2]
	var before, after []string
	for _, line := range lines[3:] {
		kind, text := line[0], line[1:]
		if kind != '+' {
			before = append(before, text)
		}
		if kind != '-' {
			after = append(after, text)
		}
	}
	m.before, m.after = strings.Join(before, "\n"), strings.Join(after, "\n")
	return m, nil
}

// readMistakes returns the blocks of mistakesFile, except the first, which is a
// comment.
func readMistakes(t *testing.T) (all []mistake) {
	text, err := os.ReadFile(mistakesFile)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(strings.TrimSpace(string(text)), "\n\n")
	for _, block := range blocks[1:] {
		m, err := parseMistake(block)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// TestMistakes runs the suite on drivers/memory with one mistake at a time and
// compares the outcomes with the file. Without -mistakes it runs only the first
// two caught mistakes. The texts of all mistakes are compared with the driver
// anyway.
func TestMistakes(t *testing.T) {
	all := readMistakes(t)
	names, sample := map[string]bool{}, 2
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			if names[m.name] || m.class != "real" && m.class != "legal" {
				t.Errorf("the name is not unique, or the class %q is unknown", m.class)
			}
			names[m.name] = true
			path := filepath.Join("..", "drivers", "memory", m.file)
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.before); n != 1 {
				t.Fatalf("%s contains this text %d times\n%s", m.file, n, m.before)
			}
			if !*mistakesFlag && (sample == 0 || m.outcome == missed || m.outcome == unknown) {
				return
			}
			sample--
			binary := m.build(t, path, strings.Replace(string(source), m.before, m.after, 1))
			outcome := m.run(t, binary)
			t.Logf("%s, %s: %s", m.class, outcome, m.what)
			if *recordFlag {
				m.record(t, outcome)
			} else if outcome != m.outcome && m.outcome != unknown {
				t.Errorf("the outcome is %q, want %q; -mistakes.record writes it into %s", outcome, m.outcome, mistakesFile)
			}
		})
	}
}

// build compiles the tests of drivers/memory, with source in place of a file.
func (m mistake) build(t *testing.T, path, source string) (binary string) {
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err := errors.Join(err, os.WriteFile(changed, []byte(source), 0o666), os.WriteFile(overlay, text, 0o666)); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "memory.test")
	if out, err := exec.Command("go", "test", "-c", "-p=1", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, "../drivers/memory").CombinedOutput(); err != nil {
		t.Fatalf("the mistake does not compile: %v\n%s", err, out)
	}
	return binary
}

// run returns the check that catches the mistake. This is the check that the
// file names, or the first failing check if it names none. The check must fail
// in each of the repeated runs.
func (m mistake) run(t *testing.T, binary string) (check string) {
	if m.outcome != missed && m.outcome != unknown {
		check = firstFailure(t, binary, m.outcome)
	}
	if check == "" {
		check = firstFailure(t, binary, "")
	}
	if check == "" {
		return missed
	}
	for i := 1; i < *repeatFlag; i++ {
		if firstFailure(t, binary, check) == "" {
			t.Logf("%s fails only sometimes: it passed in run %d", check, i+1)
			return missed
		}
	}
	return check
}

// firstFailure runs one check, or all if check is empty, and returns the first
// failing check. The configurations run in this order, so that the outcome does
// not depend on map order.
func firstFailure(t *testing.T, binary, check string) (failed string) {
	pattern := ""
	if check != "" {
		pattern = "/^" + strings.ReplaceAll(check, "/", "$/^") + "$"
	}
	for _, config := range []string{"fifo", "clients", "unordered", "sessions"} {
		if failed = suite(t, binary, config, pattern); failed != "" {
			break
		}
	}
	return failed
}

// suite runs checks in one configuration. It returns the first failing check,
// or the check that was running when the binary died.
func suite(t *testing.T, binary, config, pattern string) (check string) {
	report := filepath.Join(t.TempDir(), "report")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.failfast", "-test.timeout=30s", "-test.run=^TestConformanceInFakeTime$/^"+config+"$"+pattern,
		"-conformance.report="+report)
	cmd.Dir = filepath.Join("..", "drivers", "memory")
	out, failure := cmd.CombinedOutput()
	if failure == nil {
		return ""
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range bytes.Lines(text) {
		if fields := strings.Split(string(line), "\t"); fields[0] != "kept" && fields[0] != "refused" && fields[0] != "not-verified" {
			check = strings.TrimPrefix(fields[1], "TestConformanceInFakeTime/"+config+"/")
			if fields[0] != "running" {
				break
			}
		}
	}
	if testing.Verbose() {
		t.Logf("%v\n%s", failure, out[:min(len(out), 2000)])
	}
	return check
}

// record writes the outcome into mistakesFile.
func (m mistake) record(t *testing.T, outcome string) {
	text, err := os.ReadFile(mistakesFile)
	if err != nil {
		t.Fatal(err)
	}
	head := func(outcome string) string { return fmt.Sprintf("\n%s %s %s\n", m.name, m.class, outcome) }
	changed := strings.Replace(string(text), head(m.outcome), head(outcome), 1)
	if err := os.WriteFile(mistakesFile, []byte(changed), 0o666); err != nil {
		t.Fatal(err)
	}
}
