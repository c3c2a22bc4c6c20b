package conformance

import (
	"errors"
	"fmt"
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
	kept, broken                 int
	failed                       int // by the harness
	invalid, refused, unverified []string
}

func (s *summary) add(c Check, r result) {
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
		s.refused = append(s.refused, fmt.Sprintf("%s (%s)", c.Name, r.refused))
	default:
		s.kept++
	}
}

func (s *summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d promises kept, %d broken, %d refused as unsupported, %d not verified",
		s.kept, s.broken, len(s.refused), len(s.unverified))
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
	list("refused as unsupported", s.refused)
	list("not verified", s.unverified)
	return b.String()
}
