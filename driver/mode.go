package driver

// Mode is how a name is held.
type Mode int

const (
	// Exclusive: by one hold, and by nothing else.
	Exclusive Mode = iota

	// Read: by any number of Read holds, and by nothing else.
	Read

	// Write: by one hold, and by nothing else, in the protocol in which the read-write locks of the backend keep readers out.
	Write
)

func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "exclusive"
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return "invalid mode"
}

// Excludes says whether two holds of one name cannot be granted at the same time. Only Read holds are granted beside each other.
func (m Mode) Excludes(other Mode) bool {
	return m != Read || other != Read
}

// Support says whether a backend serves requests of a mode, and what the backend promises of these requests. The other fields of [Info] hold
// for all modes.
type Support struct {
	Offered bool
	Order   Order
	Fencing Fencing
}

// Offers says whether the backend serves requests of a mode. Package dsync refuses requests of other modes before they reach the driver.
func (i Info) Offers(m Mode) bool {
	return m == Exclusive || (m == Read || m == Write) && i.ReadWrite.Offered
}

// OrderOf returns the order in which waiters of a mode are granted a name.
func (i Info) OrderOf(m Mode) Order {
	if m == Exclusive {
		return i.Order
	}
	return i.ReadWrite.Order
}

// FencingOf says whether leases of a mode carry tokens, and what makes the tokens fall.
func (i Info) FencingOf(m Mode) Fencing {
	if m == Exclusive {
		return i.Fencing
	}
	return i.ReadWrite.Fencing
}
