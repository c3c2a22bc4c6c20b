package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// result is the outcome of a check.
type result struct {
	err     error  // the broken promise
	refused string // the capability that the driver does not claim and has refused
	missing string // the ability that the harness lacks
	events  string // the actions of the clients
	stalled string // how a standstill may have caused err, which makes the check invalid
}

// outcome returns how the check ended in one word.
func (r result) outcome() string {
	switch {
	case r.byHarness():
		return "harness-failed"
	case r.stalled != "":
		return "invalid"
	case r.err != nil:
		return "broken"
	case r.missing != "":
		return "not-verified"
	case r.refused != "":
		return "refused"
	}
	return "kept"
}

// byHarness reports whether a function of the harness ended the check.
func (r result) byHarness() bool {
	var h *harnessError
	return errors.As(r.err, &h)
}

// summary counts how checks ended.
type summary struct {
	kept, broken        int
	failed              int // failed by the harness
	invalid, unverified []string
	refused             int
	groups              []*group // in the order of their first checks
}

// group is a part of a summary. It covers the checks whose names have the same
// first word, or the checks that run again in one mode.
type group struct {
	name    string
	checks  int
	refused []string // the refused checks, each with the capability
	claims  []string // the capabilities, each once
}

// group returns the group of a check.
func (s *summary) group(c check) *group {
	name := c.group() + "/*"
	if words := strings.Split(c.Name, "/"); len(words) == 3 {
		name = "*/*/" + words[2]
	}
	i := slices.IndexFunc(s.groups, func(g *group) bool { return g.name == name })
	if i < 0 {
		i = len(s.groups)
		s.groups = append(s.groups, &group{name: name})
	}
	return s.groups[i]
}

// refusals returns the refused checks, with a single entry for a group that was
// refused as a whole.
func (s *summary) refusals() (all []string) {
	for _, g := range s.groups {
		if n := len(g.refused); n > 1 && n == g.checks {
			all = append(all, fmt.Sprintf("%s, all %d (%s)", g.name, n, strings.Join(g.claims, "; ")))
		} else {
			all = append(all, g.refused...)
		}
	}
	return all
}

func (s *summary) add(c check, r result) {
	g := s.group(c)
	g.checks++
	switch r.outcome() {
	case "harness-failed":
		s.failed++
	case "invalid":
		s.invalid = append(s.invalid, fmt.Sprintf("%s (%s)", c.Name, r.stalled))
	case "broken":
		s.broken++
	case "not-verified":
		s.unverified = append(s.unverified, fmt.Sprintf("%s (no %s)", c.Name, r.missing))
	case "refused":
		s.refused++
		g.refused = append(g.refused, fmt.Sprintf("%s (%s)", c.Name, r.refused))
		if !slices.Contains(g.claims, r.refused) {
			g.claims = append(g.claims, r.refused)
		}
	default:
		s.kept++
	}
}

// counts is the first line of the summary.
func (s *summary) counts() string {
	text := fmt.Sprintf("%d promises kept, %d broken, %d refused as unsupported, %d not verified",
		s.kept, s.broken, s.refused, len(s.unverified))
	if s.failed > 0 {
		text += fmt.Sprintf(", %d ended by the harness", s.failed)
	}
	if len(s.invalid) > 0 {
		text += fmt.Sprintf(", %d invalid", len(s.invalid))
	}
	return text
}

func (s *summary) String() string {
	var b strings.Builder
	b.WriteString(s.counts())
	list := func(title string, names []string) {
		if len(names) > 0 {
			fmt.Fprintf(&b, "\n%s: %s", title, strings.Join(names, ", "))
		}
	}
	list("invalid", s.invalid)
	list("refused as unsupported", s.refusals())
	list("not verified", s.unverified)
	return b.String()
}

var reportFlag = flag.String("conformance.report", "", "file to which package conformance appends the results of its checks")

// resultFile is the file of -conformance.report. A nil *resultFile writes
// nothing.
type resultFile struct {
	mu   sync.Mutex
	tb   testing.TB
	file *os.File
}

func openResultFile(tb testing.TB) *resultFile {
	if *reportFlag == "" {
		return nil
	}
	file, err := os.OpenFile(*reportFlag, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		tb.Fatalf("conformance: -conformance.report: %v", err)
	}
	tb.Cleanup(func() {
		if err := file.Close(); err != nil {
			tb.Errorf("conformance: -conformance.report: %v", err)
		}
	})
	return &resultFile{tb: tb, file: file}
}

func (r *resultFile) write(outcome, test string, c check) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := fmt.Fprintf(r.file, "%s\t%s\t%s\n", outcome, test, c.Promise); err != nil {
		r.tb.Errorf("conformance: -conformance.report: %v", err)
	}
}

// refusedError ends a check of a capability that the driver does not claim and
// has refused.
type refusedError struct{ capability string }

func (e *refusedError) Error() string { return "the driver does not claim " + e.capability }

// missingError ends a check that the harness cannot run.
type missingError struct{ ability string }

func (e *missingError) Error() string { return "the harness has no " + e.ability }

// need ends the check as not verified unless the harness has an ability.
func (e *env) need(able bool, ability string) {
	if !able {
		e.end(&missingError{ability})
	}
}

// capability is an optional ability of a driver.
type capability struct {
	name    string
	claimed func(*client) bool
	refused func(*client) error // the error of package dsync when the capability is used anyway
}

var (
	inspection = capability{
		name:    "inspection",
		claimed: func(c *client) bool { return c.claims(c.Inspect) },
		refused: func(c *client) error { return c.Inspect(c.env.ctx, c.env.name()) },
	}
	forceUnlock = capability{
		name:    "forced unlocking",
		claimed: func(c *client) bool { return c.claims(c.ForceUnlock) },
		refused: func(c *client) error { return c.ForceUnlock(c.env.ctx, c.env.name()) },
	}
	fencing = capability{
		name:    "fencing tokens",
		claimed: func(c *client) bool { return c.tap.Info().Fencing != driver.None },
		refused: func(c *client) error { return c.requires(driver.Require{Fenced: true}) },
	}
	fairness = capability{
		name:    "a fair order",
		claimed: func(c *client) bool { return c.tap.Info().Order != driver.Unordered },
		refused: func(c *client) error { return c.requires(driver.Require{Fair: true}) },
	}
	arrivalOrder = capability{
		name:    "an order of arrival",
		claimed: func(c *client) bool { return c.tap.Info().Order == driver.FIFO },
		refused: func(c *client) error { return c.requires(driver.Require{FIFO: true}) },
	}
)

// claims ends the check if the driver does not claim a capability. Before that,
// it checks that the driver refuses the capability.
func (e *env) claims(k capability) {
	c := e.client()
	if k.claimed(c) {
		return
	}
	if err := k.refused(c); !errors.Is(err, errors.ErrUnsupported) {
		e.endf("the driver does not claim %s, but package dsync answered %q to a call for it instead of errors.ErrUnsupported", k.name, outcome(err))
	}
	e.end(&refusedError{k.name})
}

// requires returns the error of dsync.New for a requirement.
func (c *client) requires(r driver.Require) error {
	other, err := dsync.New(c.tap, &dsync.Options{TTL: c.env.long(), Require: r})
	if err == nil {
		return fmt.Errorf("a client %v", other.Info().Name)
	}
	return err
}

// claims reports whether the driver can answer a call for a name.
func (c *client) claims(call func(context.Context, string) error) bool {
	return !errors.Is(call(c.env.ctx, c.env.name()), errors.ErrUnsupported)
}
