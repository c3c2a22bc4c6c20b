//go:build unix

package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// toll is a URL scheme for the driver on a directory behind a server that
// requires a password: toll://USER:PASSWORD@host:port/directory. It is opened
// with the faults of a tollMutant.
func init() {
	driver.Register("toll", func(ctx context.Context, c *driver.Config) (driver.Driver, error) {
		m := tollMutants[c.URL.Param("broken", "")]
		if m.deafToParameters {
			c.URL.Rest()
		}
		if err := c.URL.Err(); err != nil {
			return nil, err
		}
		if m.oneForAll && c.TTL > 0 {
			return nil, errors.New("unknown parameter ttl")
		}
		err := m.pay(ctx, c.URL)
		if err != nil && (!m.takes || !errors.Is(err, errRefused)) {
			return nil, err
		}
		d := newFileDriver(c.URL.Path)
		if err != nil {
			d.dir = "/dev/null" // requests fail
		}
		d.noTokens = !c.Fenced && !m.fenced
		return d, nil
	})
}

type tollMutant struct {
	check, breaks                          string
	fenced, deafToParameters, tells, takes bool
	oneForAll                              bool
}

// tollMutants are drivers with broken openers. The one with the empty name is
// correct.
var tollMutants = map[string]tollMutant{
	"":        {},
	"fenced":  {check: "url/fenced", breaks: "fenced=false is ignored", fenced: true},
	"unknown": {check: "url/parameters", breaks: "unknown parameters are ignored", deafToParameters: true},
	"common":  {check: "url/common", breaks: "a parameter of all drivers is refused", oneForAll: true},
	"tells":   {check: "url/unreachable", breaks: "an error contains the URL with its password", tells: true},
	"takes":   {check: "url/password", breaks: "a refused password causes no error before the first request", takes: true},
}

var errRefused = errors.New("wrong password")

// pay connects to the server.
func (m tollMutant) pay(ctx context.Context, u *driver.URL) error {
	password, _ := u.User.Password()
	failed := func(err error) error {
		if m.tells {
			return fmt.Errorf("toll://%s:%s@%s: %w", u.User.Username(), password, u.Hosts[0], err)
		}
		return fmt.Errorf("%s: %w", u, err)
	}
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", u.Hosts[0])
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	fmt.Fprintln(c, password)
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return failed(fmt.Errorf("%w: %w", err, context.Cause(ctx)))
	}
	if answer != "ok\n" {
		return failed(errRefused)
	}
	return nil
}

// onToll returns a harness of that driver with the given URL query.
func onToll(t *testing.T, query string) Harness {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	password := testenv.Password()
	go func() { // ends when the listener is closed
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if said, _ := bufio.NewReader(c).ReadString('\n'); said == password+"\n" {
				fmt.Fprintln(c, "ok")
			} else {
				fmt.Fprintln(c, "who are you?")
			}
			c.Close()
		}
	}()
	url := fmt.Sprintf("toll://me:%s@%s%s%s", password, ln.Addr(), t.TempDir(), query)
	return Harness{Backend: func(testing.TB) *Backend {
		return &Backend{URL: url, New: func(tb testing.TB) (driver.Driver, *Link) {
			d, _, err := driver.Open(tb.Context(), url)
			if err != nil {
				tb.Fatal(err)
			}
			return d, nil
		}}
	}}
}

func TestMutantsOfURLs(t *testing.T) {
	t.Parallel()
	caught := map[string]bool{}
	for name, m := range tollMutants {
		caught[m.check] = true
		t.Run(fmt.Sprintf("%s, by %s", m.breaks, m.check), func(t *testing.T) {
			query := ""
			if name != "" {
				query = "?broken=" + name
			}
			h := onToll(t, query)
			for _, c := range urlChecks {
				r := c.result(t, h)
				if r.err == nil && r.missing == "" && r.refused == "" {
					continue
				}
				if c.Name != m.check {
					t.Fatalf("caught by %q, want %q; it reported: %v\n%s", c.Name, m.check, r.err, r.events)
				}
				t.Log(r.err)
				return
			}
			if m.check != "" {
				t.Fatalf("caught by no check, want %q", m.check)
			}
		})
	}
	for _, c := range urlChecks {
		if !caught[c.Name] {
			t.Errorf("no mutant is caught by %s, so nothing shows that it can fail", c.Name)
		}
	}
}
