// Command testscan runs a command line, which is one of `go test -json`, and looks for passwords of the tests
// (testenv.PasswordMark) in everything that the tests write: their logs, those of tests that pass too, and what they or the code under
// test write to standard output and standard error. It shows what `go test` shows without -json, and at the end sums up what was run
// and for how long, which tests failed and how their logs began, and how the crashes of test binaries began. It fails where `go test`
// does, or if there is a password.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

func main() {
	// An interrupt is for the tests, whose end is then reported.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command that writes as `go test -json` does, and returns the exit code: its own, if that is not 0.
func run(argv []string, stdout, stderr io.Writer) int {
	s := &scan{
		verbose: slices.Contains(argv, "-v") || slices.Contains(argv, "-test.v"), out: stdout,
		tests: map[test][]string{}, before: map[string]string{}, summary: newSummary(), failures: newFailures(),
	}
	began := time.Now()
	errs := new(bytes.Buffer)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = io.MultiWriter(stderr, errs)
	lines, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(stderr, "testscan:", err)
		return 1
	}
	for in := bufio.NewReader(lines); err == nil; {
		var line []byte
		line, err = in.ReadBytes('\n')
		s.line(line)
	}
	failed := cmd.Wait()
	s.summary.write(stdout, time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	s.failures.write(stdout)
	s.look("standard error of go test", errs.String())
	if len(s.found) > 0 {
		fmt.Fprintf(stderr, "FAIL: passwords of the tests are shown in\n%s", strings.Join(s.found, ""))
	}
	var exit *exec.ExitError
	switch {
	case errors.As(failed, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	case failed != nil || err != io.EOF || len(s.found) > 0:
		return 1
	}
	return 0
}

// event is what `go test -json` writes in a line; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	ImportPath, FailedBuild       string  // of what does not compile
	Elapsed                       float64 // seconds
}

type test struct{ pkg, name string }

type scan struct {
	verbose bool
	out     io.Writer
	found   []string
	before  map[string]string // by package: what it wrote last, if the line had no end

	order []test
	tests map[test][]string // what is shown if they fail

	summary  *summary
	failures *failures
}

// line takes a line, with its end.
func (s *scan) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil { // of go itself
		s.look("output of go test", string(line))
		s.out.Write(line)
		return
	}
	s.output(e)
	s.failures.add(e)
	t := test{e.Package, e.Test}
	if e.Action == "pass" || e.Action == "skip" || e.Action == "fail" {
		s.summary.add(e, s.tests[t])
	}
	switch {
	case e.Action == "output" && s.verbose, e.Action == "build-output":
		io.WriteString(s.out, e.Output)
	case e.Action == "output" && !strings.HasPrefix(e.Output, "=== "):
		if s.tests[t] == nil {
			s.order = append(s.order, t)
		}
		s.tests[t] = append(s.tests[t], e.Output)
	case e.Test != "" && (e.Action == "pass" || e.Action == "skip"):
		// What it logged is hidden, which is indented, and what it printed is not.
		s.tests[t] = slices.DeleteFunc(s.tests[t], func(line string) bool {
			return strings.HasPrefix(line, "    ") || strings.HasPrefix(strings.TrimSpace(line), "--- ")
		})
	case e.Test == "" && (e.Action == "pass" || e.Action == "skip" || e.Action == "fail"):
		s.end(t, e.Action == "fail")
	}
}

// end shows the end of a package: its last line, or all that is left of its tests if it failed.
func (s *scan) end(pkg test, failed bool) {
	if all := s.tests[pkg]; !failed && len(all) > 0 {
		io.WriteString(s.out, all[len(all)-1])
	}
	s.order = slices.DeleteFunc(s.order, func(t test) bool {
		if t.pkg != pkg.pkg || t == pkg {
			return t == pkg
		}
		if failed {
			io.WriteString(s.out, strings.Join(s.tests[t], ""))
		}
		delete(s.tests, t)
		return true
	})
	if failed {
		io.WriteString(s.out, strings.Join(s.tests[pkg], ""))
	}
	delete(s.tests, pkg)
}

// output looks at what a package wrote. A long line comes in pieces.
func (s *scan) output(e event) {
	text := s.before[e.Package] + e.Output
	s.look(e.Package+" "+e.Test, text)
	if s.before[e.Package] = text; strings.HasSuffix(text, "\n") {
		delete(s.before, e.Package)
	}
}

func (s *scan) look(where, text string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, testenv.PasswordMark) {
			s.found = append(s.found, where+": "+strings.TrimSpace(line)+"\n")
		}
	}
}
