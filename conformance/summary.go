package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// result is how a check ended.
type result struct {
	err     error  // how the promise is broken
	refused string // the capability that the driver does not claim, and was seen to refuse
	missing string // the ability that the harness lacks
	events  string // what the clients did
	stalled string // how err may have come of a standstill, which makes the check invalid
}

// byHarness reports whether a function of the harness ended the check.
func (r result) byHarness() bool {
	var h *harnessError
	return errors.As(r.err, &h)
}

// summary counts how checks ended.
type summary struct {
	kept, broken        int
	failed              int // by the harness
	invalid, unverified []string
	refused             int
	groups              []*group // in the order of their first checks
}

// group is the part of a summary about the checks with one first word in their names, or about those that run again in one mode.
type group struct {
	name    string
	checks  int
	refused []string // the checks that were, each with the capability
	claims  []string // the capabilities, each once
}

// group returns the group of a check.
func (s *summary) group(c Check) *group {
	words := strings.Split(c.Name, "/")
	name := words[0] + "/*"
	if len(words) == 3 {
		name = "*/*/" + words[2]
	}
	i := slices.IndexFunc(s.groups, func(g *group) bool { return g.name == name })
	if i < 0 {
		i = len(s.groups)
		s.groups = append(s.groups, &group{name: name})
	}
	return s.groups[i]
}

// refusals returns the checks that were refused, as one where the whole group was.
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

func (s *summary) add(c Check, r result) {
	g := s.group(c)
	g.checks++
	switch {
	case r.byHarness():
		s.failed++
	case r.stalled != "":
		s.invalid = append(s.invalid, fmt.Sprintf("%s (%s)", c.Name, r.stalled))
	case r.err != nil:
		s.broken++
	case r.missing != "":
		s.unverified = append(s.unverified, fmt.Sprintf("%s (no %s)", c.Name, r.missing))
	case r.refused != "":
		s.refused++
		g.refused = append(g.refused, fmt.Sprintf("%s (%s)", c.Name, r.refused))
		if !slices.Contains(g.claims, r.refused) {
			g.claims = append(g.claims, r.refused)
		}
	default:
		s.kept++
	}
}

func (s *summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d promises kept, %d broken, %d refused as unsupported, %d not verified",
		s.kept, s.broken, s.refused, len(s.unverified))
	if s.failed > 0 {
		fmt.Fprintf(&b, ", %d ended by the harness", s.failed)
	}
	if len(s.invalid) > 0 {
		fmt.Fprintf(&b, ", %d invalid", len(s.invalid))
	}
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
