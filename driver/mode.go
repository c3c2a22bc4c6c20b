package driver

import (
	"errors"
	"fmt"
)

// Mode is how a name is held.
type Mode uint8

const (
	// Exclusive: by one hold, and by nothing else.
	Exclusive Mode = iota

	// Read: by any number of Read holds, and by nothing else.
	Read

	// Write: by one hold, and by nothing else, in the protocol in which the
	// read-write locks of the backend keep readers out.
	Write

	// Permit: by any number of Permit holds, as far as their permits add up to
	// no more than the limit of the name.
	Permit
)

func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "exclusive"
	case Read:
		return "read"
	case Write:
		return "write"
	case Permit:
		return "permit"
	}
	return "invalid mode"
}

// Excludes says whether two holds of one name cannot be granted at the same
// time. Only Read holds are granted beside each other, and Permit holds, as far
// as the limit goes.
func (m Mode) Excludes(other Mode) bool {
	return m != other || m != Read && m != Permit
}

// Support says whether a backend serves requests of a mode, and what the
// backend promises of these requests. The other fields of [Info] hold for all
// modes.
type Support struct {
	Offered bool
	Order   Order
	Fencing Fencing // None for Permit
	Why     string  // not Offered: the reason, for people, where there is more to say than that
}

// of returns the Support of a mode, and what the mode is called in errors.
func (i Info) of(m Mode) (Support, string) {
	switch m {
	case Exclusive:
		return Support{Offered: true, Order: i.Order, Fencing: i.Fencing}, "locks"
	case Read, Write:
		return i.ReadWrite, "read-write locks"
	case Permit:
		return i.Permits, "permits"
	}
	return Support{}, m.String()
}

// Offers says whether the backend serves requests of a mode. Package dsync
// refuses requests of other modes before they reach the driver.
func (i Info) Offers(m Mode) bool {
	s, _ := i.of(m)
	return s.Offered
}

// CheckMode returns an error, which matches errors.ErrUnsupported and has the
// reason, if the backend does not offer a mode.
func (i Info) CheckMode(m Mode) error {
	s, what := i.of(m)
	switch {
	case s.Offered:
		return nil
	case s.Why == "":
		return fmt.Errorf("backend %s has no %s: %w", i.Name, what, errors.ErrUnsupported)
	}
	return fmt.Errorf("backend %s has no %s, since %s: %w", i.Name, what, s.Why, errors.ErrUnsupported)
}

// OrderOf returns the order in which waiters of a mode are granted a name.
func (i Info) OrderOf(m Mode) Order {
	s, _ := i.of(m)
	return s.Order
}

// FencingOf says whether leases of a mode carry tokens, and what makes the
// tokens fall.
func (i Info) FencingOf(m Mode) Fencing {
	s, _ := i.of(m)
	return s.Fencing
}
