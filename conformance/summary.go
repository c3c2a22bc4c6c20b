package conformance

import (
	"fmt"
	"strings"
)

// result is how a check ended.
type result struct {
	err     error  // how the promise is broken
	refused string // the capability that the driver does not claim, in which case it was checked that it refuses it
	missing string // what the harness would have to be able to do
	events  string // what the clients did
}

// summary counts how checks ended.
type summary struct {
	kept, broken        int
	refused, unverified []string
}

func (s *summary) add(c Check, r result) {
	switch {
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
	list := func(title string, names []string) {
		if len(names) > 0 {
			fmt.Fprintf(&b, "\n%s: %s", title, strings.Join(names, ", "))
		}
	}
	list("refused as unsupported", s.refused)
	list("not verified", s.unverified)
	return b.String()
}
