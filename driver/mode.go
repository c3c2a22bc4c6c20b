package driver

import (
	"errors"
	"fmt"
)

// Mode is the kind of a hold.
type Mode uint8

const (
	// Exclusive is a hold that excludes all other holds.
	Exclusive Mode = iota

	// Read is a hold that excludes all holds but other Read holds.
	Read

	// Write is a hold that excludes all other holds. It uses the protocol by
	// which the backend's read-write locks exclude readers.
	Write

	// Permit is a hold of some permits. The permits of all holds of a name are
	// at most its limit.
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

// Excludes reports whether two holds of the same name cannot be granted at the
// same time. Only Read holds, and Permit holds within the limit, are granted at
// the same time.
func (m Mode) Excludes(other Mode) bool {
	return m != other || m != Read && m != Permit
}

// Support describes whether a backend serves requests of a mode, and what it
// promises for them. The other fields of [Info] apply to all modes.
type Support struct {
	Offered bool
	Order   Order
	Fencing Fencing // None for Permit
	Why     string  // if not Offered: an additional reason for people, if any
}

// of returns the Support of a mode, and the mode's name in errors.
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

// Offers reports whether the backend serves requests of a mode. Package dsync
// refuses requests of other modes before they reach the driver.
func (i Info) Offers(m Mode) bool {
	s, _ := i.of(m)
	return s.Offered
}

// CheckMode returns an error if the backend does not offer a mode. The error
// matches errors.ErrUnsupported and includes the reason.
func (i Info) CheckMode(m Mode) error {
	s, what := i.of(m)
	switch {
	case s.Offered:
		return nil
	case s.Why == "":
		return fmt.Errorf("backend %s has no %s: %w", i.Name, what, errors.ErrUnsupported)
	}
	return fmt.Errorf("backend %s has no %s, because %s: %w", i.Name, what, s.Why, errors.ErrUnsupported)
}

// OrderOf returns the order in which waiters of a mode are granted a name.
func (i Info) OrderOf(m Mode) Order {
	s, _ := i.of(m)
	return s.Order
}

// FencingOf returns whether leases of a mode have tokens, and what could make
// the tokens fall.
func (i Info) FencingOf(m Mode) Fencing {
	s, _ := i.of(m)
	return s.Fencing
}
