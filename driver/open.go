package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config is the content of a URL: the URL itself, for the driver's own
// parameters, and the parameters that are common to all drivers.
type Config struct {
	URL *URL
	TTL time.Duration // TTL of most leases: ttl=30s, or the argument of OpenTTL; 0 for the default
	// floor=1000: the user of the driver adds it to each token of the driver;
	// see Tokens
	Floor   uint64
	Fenced  bool    // fenced=false: no tokens, and nothing is stored for them
	Require Require // require=fair,fifo,fenced,rw,permits; checked by Open
}

// Opener makes a Driver from a URL. An Opener reads all its parameters, calls
// [URL.Err], and then connects, or fails within ctx. No Opener is called with a
// ctx that has already ended.
type Opener func(ctx context.Context, c *Config) (Driver, error)

var (
	openersMu sync.RWMutex
	openers   = map[string]Opener{}
)

// Register makes a driver available under a URL scheme. The init function of
// the driver's package calls Register, which panics if the scheme is already
// registered or malformed.
func Register(scheme string, open Opener) {
	openersMu.Lock()
	defer openersMu.Unlock()
	if !validScheme(scheme) || open == nil {
		panic(fmt.Sprintf("driver: Register(%q): malformed scheme or no opener", scheme))
	}
	if _, taken := openers[scheme]; taken {
		panic(fmt.Sprintf("driver: Register(%q): called twice", scheme))
	}
	openers[scheme] = open
}

// Schemes returns the registered URL schemes in alphabetical order.
func Schemes() []string {
	openersMu.RLock()
	defer openersMu.RUnlock()
	names := make([]string, 0, len(openers))
	for name := range openers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Open opens the driver of the URL's scheme and returns the driver and the
// parsed URL. Errors never contain the password.
func Open(ctx context.Context, rawURL string) (Driver, *Config, error) {
	return OpenTTL(ctx, rawURL, 0)
}

// OpenTTL is like Open, but for leases of the given TTL, unless the URL has its
// own ttl.
func OpenTTL(ctx context.Context, rawURL string, ttl time.Duration) (Driver, *Config, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, nil, err
	}
	openersMu.RLock()
	open := openers[u.Scheme]
	openersMu.RUnlock()
	if open == nil {
		if text := hint(u.Scheme); text != "" {
			return nil, nil, fmt.Errorf("unknown backend %q: %s", u.Scheme, text)
		}
		registered := "none"
		if s := Schemes(); len(s) > 0 {
			registered = strings.Join(s, ", ")
		}
		return nil, nil, fmt.Errorf("unknown backend %q (forgotten import of its driver? registered: %s)", u.Scheme, registered)
	}
	c := &Config{URL: u, TTL: u.Duration("ttl", ttl), Fenced: u.Bool("fenced", true)}
	if c.Require, err = ParseRequire(u.Param("require", "")); err != nil {
		u.fail("require", err.Error())
	}
	if c.Floor = u.unsigned("floor", maxFloor); c.Floor > 0 && !c.Fenced {
		u.fail("floor", "with fenced=false there are no tokens to raise")
	}
	if u.err != nil {
		return nil, nil, u.err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err // do not open a connection that is not needed
	}
	d, err := open(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(u.Err(), d.Info().Check(c.Require), d.Info().CheckFloor(c.Floor)); err != nil {
		return nil, nil, errors.Join(err, d.Close(ctx))
	}
	return d, c, nil
}

// maxFloor is the highest floor that leaves room for all later tokens.
const maxFloor = 1 << 62

// Tokens returns the tokens of a lease with a floor added. Drivers do not know
// the floor. A program that has moved from another backend has a floor in its
// URL, above all tokens of that backend.
func Tokens(l Lease, floor uint64) (first uint64, n int) {
	if first, n = l.Tokens(); n > 0 {
		first += floor
	}
	return first, n
}

// Require lists the promises that a program needs from a backend. Opening a
// backend that promises less fails.
type Require struct {
	Fair   bool // an order that starves no waiter: any except Unordered
	FIFO   bool // all waiters in the order of arrival
	Fenced bool // fencing tokens
	RW     bool // the modes Read and Write; Fair, FIFO and Fenced then include these modes

	// the mode Permit; Fair and FIFO then include it
	Permits bool
}

// ParseRequire reads a list such as "fair,fenced,rw".
func ParseRequire(s string) (Require, error) {
	var r Require
	if s == "" {
		return r, nil
	}
	for word := range strings.SplitSeq(s, ",") {
		switch word {
		case "fair":
			r.Fair = true
		case "fifo":
			r.FIFO = true
		case "fenced":
			r.Fenced = true
		case "rw":
			r.RW = true
		case "permits":
			r.Permits = true
		default:
			return r, errors.New("not one of fair, fifo, fenced, rw, permits")
		}
	}
	return r, nil
}

// Check returns an error if r requires more than i promises. The error matches
// errors.ErrUnsupported and names the difference.
func (i Info) Check(r Require) error {
	if err := i.check(r, Exclusive, ""); err != nil {
		return err
	}
	if r.RW {
		if err := i.check(r, Write, " for reads and writes"); err != nil {
			return err
		}
	}
	if r.Permits {
		r.Fenced = false // no backend has tokens of permits
		return i.check(r, Permit, " for permits")
	}
	return nil
}

func (i Info) check(r Require, m Mode, what string) error {
	order := i.OrderOf(m)
	switch {
	case !i.Offers(m):
		return i.CheckMode(m)
	case r.FIFO && order != FIFO:
		return fmt.Errorf("backend %s does not grant in order of arrival%s, which fifo requires (its order: %v): %w", i.Name, what, order, errors.ErrUnsupported)
	case r.Fair && order == Unordered:
		return fmt.Errorf("backend %s is not fair%s (its order: %v): %w", i.Name, what, order, errors.ErrUnsupported)
	case r.Fenced && i.FencingOf(m) == None:
		return fmt.Errorf("backend %s has no fencing tokens%s: %w", i.Name, what, errors.ErrUnsupported)
	}
	return nil
}

// CheckFloor returns an error that matches errors.ErrUnsupported if there are
// no tokens to add floor to, or too little room.
func (i Info) CheckFloor(floor uint64) error {
	switch {
	case floor > maxFloor:
		return fmt.Errorf("floor %d of the tokens leaves no room above it: %w", floor, errors.ErrUnsupported)
	case floor > 0 && i.Fencing == None:
		return fmt.Errorf("backend %s has no fencing tokens to add a floor to: %w", i.Name, errors.ErrUnsupported)
	}
	return nil
}

// CheckTTL returns an error with the bounds if the backend does not support a
// lease of length d. The error matches errors.ErrUnsupported if another backend
// could support it.
func (i Info) CheckTTL(d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("TTL %v is not positive", d)
	case d < i.MinTTL, i.MaxTTL > 0 && d > i.MaxTTL:
		return fmt.Errorf("TTL %v is outside the range that backend %s supports (%v to %s): %w", d, i.Name, i.MinTTL, i.maxTTL(), errors.ErrUnsupported)
	case i.TTLUnit > 0 && d%i.TTLUnit != 0:
		return fmt.Errorf("TTL %v is not a multiple of %v, the unit of backend %s: %w", d, i.TTLUnit, i.Name, errors.ErrUnsupported)
	}
	return nil
}

func (i Info) maxTTL() string {
	if i.MaxTTL == 0 {
		return "any"
	}
	return i.MaxTTL.String()
}
