package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// At most so much is shown of a failed package.
const (
	shownNames   = 20
	shownCrashes = 3
	shownLines   = 16  // of a crash, with the first one
	shownReasons = 5   // failed tests of which is shown what they logged
	shownLogged  = 6   // lines of that
	shownWidth   = 500 // characters of each of these
)

// crash is how the first line of what ends a test binary looks, or of a report of the race detector.
var crash = regexp.MustCompile(`^(?:panic: |fatal error: |SIG[A-Z]+: |race: limit |WARNING: DATA RACE)`)

// failures are the packages that have not passed: what to read first when the log of a run is long.
type failures struct {
	packages map[string]*failure
	order    []string // of their ends
	builds   map[string]*excerpt
}

type failure struct {
	failed, running []string // tests
	crashes         []*excerpt
	crashed         map[string]*excerpt // by test: the last of its crashes
	logged          map[string]*excerpt // by test: the first two lines of each entry
	rest            excerpt             // the last lines that no test wrote
}

// excerpt is some lines.
type excerpt struct {
	test  string
	lines []string
}

func newFailures() *failures {
	return &failures{packages: map[string]*failure{}, builds: map[string]*excerpt{}}
}

func (f *failures) add(e event) {
	if e.Action == "build-output" {
		b := f.builds[e.ImportPath]
		if b == nil {
			b = new(excerpt)
			f.builds[e.ImportPath] = b
		}
		if len(b.lines) < shownLines {
			b.lines = append(b.lines, e.Output)
		}
		return
	}
	p := f.packages[e.Package]
	if p == nil {
		p = &failure{crashed: map[string]*excerpt{}, logged: map[string]*excerpt{}}
		f.packages[e.Package] = p
	}
	if e.Test != "" || e.Action == "output" {
		p.add(e)
		return
	}
	switch e.Action {
	case "pass", "skip":
		delete(f.packages, e.Package)
	case "fail":
		f.order = append(f.order, e.Package)
		if b := f.builds[e.FailedBuild]; b != nil {
			p.crashes = append(p.crashes, b)
		}
	}
}

// add takes what a test does, or what the package writes.
func (p *failure) add(e event) {
	switch e.Action {
	case "run":
		p.running = append(p.running, e.Test)
	case "pass", "skip", "fail":
		p.running = slices.DeleteFunc(p.running, func(name string) bool { return name == e.Test })
		if e.Action == "fail" {
			p.failed = append(p.failed, e.Test)
		} else {
			delete(p.logged, e.Test)
		}
	case "output":
		p.output(e)
	}
}

func (p *failure) output(e event) {
	if e.Test == "" {
		p.rest.lines = append(p.rest.lines, e.Output)
		p.rest.lines = p.rest.lines[max(0, len(p.rest.lines)-shownLines):]
	}
	if e.Test != "" {
		p.log(e)
	}
	at := p.crashed[e.Test]
	switch {
	case at != nil && len(at.lines) < shownLines:
		at.lines = append(at.lines, e.Output)
	case crash.MatchString(e.Output) && len(p.crashes) < shownCrashes:
		at = &excerpt{e.Test, []string{e.Output}}
		p.crashes = append(p.crashes, at)
		p.crashed[e.Test] = at
	}
}

// log keeps a line of a test that begins an entry of its log, or comes right behind such a line.
func (p *failure) log(e event) {
	entries := p.logged[e.Test]
	switch {
	case entries != nil && len(entries.lines) == shownLogged:
		return
	case logged.MatchString(e.Output), entries != nil && logged.MatchString(entries.lines[len(entries.lines)-1]):
	default:
		return
	}
	if entries == nil {
		entries = new(excerpt)
		p.logged[e.Test] = entries
	}
	entries.lines = append(entries.lines, fmt.Sprintf("%.*s", shownWidth, e.Output))
}

// write shows the packages that failed, and those that crashed and have no end.
func (f *failures) write(w io.Writer) {
	for name, p := range f.packages {
		if !slices.Contains(f.order, name) && len(p.failed)+len(p.crashes) > 0 {
			f.order = append(f.order, name)
		}
	}
	for _, name := range f.order {
		f.packages[name].write(w, strings.TrimPrefix(strings.TrimPrefix(name, module), "/"))
	}
}

func (p *failure) write(w io.Writer, name string) {
	fmt.Fprintf(w, "\nFAILED: %s\n", name)
	p.list(w, "failed", p.failed)
	p.list(w, "did not end", p.running)
	if len(p.failed)+len(p.crashes) == 0 {
		p.crashes = append(p.crashes, &p.rest)
	}
	for _, c := range p.crashes {
		if c.test != "" {
			fmt.Fprintf(w, "  in %s:\n", c.test)
		}
		c.write(w)
	}
}

func (c *excerpt) write(w io.Writer) {
	for _, line := range c.lines {
		fmt.Fprintf(w, "    %s\n", strings.TrimRight(line, "\n"))
	}
}

// list shows tests, without those whose subtests are shown, and how what they logged began.
func (p *failure) list(w io.Writer, title string, tests []string) {
	names := slices.DeleteFunc(slices.Clone(tests), func(name string) bool {
		return slices.ContainsFunc(tests, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
	for i, name := range names {
		if i == shownNames {
			fmt.Fprintf(w, "  … and %d more\n", len(names)-i)
			return
		}
		fmt.Fprintf(w, "  %s: %s\n", title, name)
		if entries := p.logged[name]; entries != nil && i < shownReasons {
			entries.write(w)
		}
	}
}
