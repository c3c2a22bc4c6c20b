package conformance

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// The checks of driver.Open with Backend.URL.
var urlChecks = []check{
	{"url/fenced", "With fenced=false there are no tokens, and Info.Fencing is None.", urlWithoutTokens},
	{"url/parameters", "A parameter of a URL that is unknown, malformed or given twice is an error that names it.", urlParameters},
	{"url/common", "The parameters ttl and floor are accepted beside those of the driver.", urlCommon},
	{"url/unreachable", "Open of a backend that is not there, or does not answer, fails within its context, and does not tell the password.", urlOfNobody},
	{"url/password", "Open with a password that the server refuses is an error, which does not tell it.", urlWithWrongPassword},
}

// openFor is how long the context of an Open lasts that has to succeed.
const openFor = 10 * time.Second

// secret is a password that no server knows.
const secret = "conformance-s3cret"

// open opens url. The driver is closed with the check.
func (e *env) open(ctx context.Context, url string) (d driver.Driver, err error) {
	e.within("driver.Open", func() { d, _, err = driver.Open(ctx, url) })
	if err == nil {
		e.onClose(func(ctx context.Context) { _ = d.Close(ctx) })
	}
	return d, err
}

// raw returns d as a client of the check, which does not close it.
func (e *env) raw(d driver.Driver) *rawDriver {
	r := &rawDriver{connection: &connection{env: e, label: e.label(), link: &Link{}}}
	r.tap, r.driver = e.tap(r.label, d)
	return r
}

// url returns Backend.URL with more parameters.
func (e *env) url(parameters string) string {
	e.need(e.backend.URL != "", "Backend.URL")
	if strings.Contains(e.backend.URL, "?") {
		return e.backend.URL + "&" + parameters
	}
	return e.backend.URL + "?" + parameters
}

// urlAt returns Backend.URL with a user and another password, and at another host unless host is "".
func (e *env) urlAt(host string) string {
	e.need(e.backend.URL != "", "Backend.URL")
	u, err := driver.ParseURL(e.backend.URL)
	e.must(err)
	switch {
	case host == "":
		host = strings.Join(u.Hosts, ",")
	case len(u.Hosts) == 0:
		e.end(&refusedError{"to connect to a host"})
	}
	user := "nobody"
	if u.User != nil && u.User.Username() != "" {
		user = u.User.Username()
	}
	_, rest, _ := strings.Cut(e.backend.URL, "://")
	after := strings.IndexAny(rest, "/?")
	if after < 0 {
		after = len(rest)
	}
	return u.Scheme + "://" + user + ":" + secret + "@" + host + rest[after:]
}

// fails returns an error unless Open of url fails soon after the end of ctx, with an error without the secret.
func (e *env) fails(ctx context.Context, what, url string) error {
	switch d, err := e.open(ctx, url); {
	case err == nil:
		return fmt.Errorf("%s is no error, but the driver %s", what, d.Info().Name)
	case strings.Contains(err.Error(), secret):
		return fmt.Errorf("%s is an error that tells the password: %w", what, err)
	}
	return nil
}

func urlWithoutTokens(e *env) error {
	ctx, cancel := context.WithTimeout(e.ctx, openFor)
	defer cancel()
	d, err := e.open(ctx, e.url("fenced=false"))
	if err != nil {
		return fmt.Errorf("with fenced=false: %w", err)
	}
	if f := d.Info().Fencing; f != driver.None {
		return fmt.Errorf("with fenced=false the Info says that fencing is %v", f)
	}
	h := e.raw(d).hold(e.name())
	if first, n := h.lease.Tokens(); first != 0 || n != 0 {
		return fmt.Errorf("with fenced=false a lease has %d tokens from %d", n, first)
	}
	h.release()
	return nil
}

func urlParameters(e *env) error {
	ctx, cancel := context.WithTimeout(e.ctx, openFor)
	defer cancel()
	for parameters, name := range map[string]string{
		"conformance_nonsense=1":        "conformance_nonsense",
		"fenced=perhaps":                "fenced",
		"fenced=true&fenced=false":      "fenced",
		"ttl=soon":                      "ttl",
		"ttl=1m&ttl=1m":                 "ttl",
		"require=the+impossible":        "require",
		"conformance_nonsense=%31&ttl=": "ttl",
	} {
		switch d, err := e.open(ctx, e.url(parameters)); {
		case err == nil:
			return fmt.Errorf("a URL with %s is no error, but the driver %s", parameters, d.Info().Name)
		case !strings.Contains(err.Error(), name):
			return fmt.Errorf("a URL with %s is an error that does not name the parameter %s: %w", parameters, name, err)
		}
	}
	return nil
}

func urlCommon(e *env) error {
	for _, own := range []string{"ttl=", "floor="} {
		if strings.Contains(e.backend.URL, own) {
			return nil // the other checks open it
		}
	}
	ctx, cancel := context.WithTimeout(e.ctx, openFor)
	defer cancel()
	ttl := e.allowed(e.long())
	url := e.url(fmt.Sprintf("ttl=%v&floor=1000", ttl))
	var c *driver.Config
	var d driver.Driver
	var err error
	e.within("driver.Open", func() { d, c, err = driver.Open(ctx, url) })
	if err != nil {
		return fmt.Errorf("with ttl=%v&floor=1000: %w", ttl, err)
	}
	e.onClose(func(ctx context.Context) { _ = d.Close(ctx) })
	if c.TTL != ttl || c.Floor != 1000 {
		return fmt.Errorf("with ttl=%v&floor=1000 the Config has the TTL %v and the floor %d", ttl, c.TTL, c.Floor)
	}
	e.raw(d).hold(e.name()).release()
	return nil
}

// deaf listens on the loopback interface, and does not answer.
func (e *env) deaf() (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	e.must(err)
	ended := e.run(func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			e.onClose(func(context.Context) { c.Close() })
		}
	})
	e.onClose(func(context.Context) {
		ln.Close()
		<-ended.done
	})
	return ln.Addr().String()
}

func urlOfNobody(e *env) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	e.must(err)
	closed := ln.Addr().String()
	ln.Close()
	silent := e.deaf()
	hosts := []string{closed, silent}
	e.together("Open of a backend that is not there", len(hosts), func(i int) error {
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		return e.fails(ctx, "Open of a URL whose host "+[]string{"refuses connections", "does not answer"}[i], e.urlAt(hosts[i]))
	})
	return nil
}

func urlWithWrongPassword(e *env) error {
	url := e.urlAt("")
	ctx, cancel := context.WithTimeout(e.ctx, openFor)
	defer cancel()
	d, err := e.open(ctx, url)
	switch {
	case err != nil && strings.Contains(err.Error(), secret):
		return fmt.Errorf("an Open with a password that is refused is an error that tells it: %w", err)
	case err != nil:
		return nil
	}
	r := e.raw(d).acquire(e.name(), noWait)
	if r.lease == nil {
		return fmt.Errorf("an Open with a wrong password is no error, and the first request is: %w", r.err)
	}
	r.release()
	e.end(&refusedError{"a password"}) // the server takes anybody
	return nil
}
