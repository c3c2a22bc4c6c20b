package dsync

import "github.com/go-dsync/dsync/driver"

// What a backend promises, and what a program asks for. The types are those of package driver, which users need not import.
type (
	Info    = driver.Info    // what a backend promises: Client.Info
	Order   = driver.Order   // Info.Order
	Fencing = driver.Fencing // Info.Fencing
	Require = driver.Require // Options.Require
)

// In which order waiters are granted a name.
const (
	Unordered    = driver.Unordered    // any waiter may be next
	FIFOByClient = driver.FIFOByClient // clients in the order of arrival, and callers inside a client in theirs
	FIFO         = driver.FIFO         // all waiters of all clients in the order of arrival
)

// Whether leases carry fencing tokens, and what makes tokens fall.
const (
	NoTokens       = driver.None     // Lease.Token is 0
	VolatileTokens = driver.Volatile // tokens rise, but may restart when the backend loses data
	DurableTokens  = driver.Durable  // tokens rise for as long as the backend keeps what was acknowledged
)
