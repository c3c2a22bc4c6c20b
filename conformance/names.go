package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

var namesChecks = []check{
	{"names/any", "Any valid name can be locked: spaces, slashes, braces, quotes, any script, up to 1 KiB.", anyName},
	{"names/distinct", "Different names are different locks, however similar they are: in case, in escapes, as paths, or in Unicode forms.", distinctNames},
	{"names/alike", "Names that a backend may confuse either are different locks and latches in every mode, for holders and for waiters, or are refused in every mode.", alikeNames},
}

// oddNames are names that have caused problems in some backend, encoding or
// script.
var oddNames = []string{
	" ", "a", "A", "a ", " a", "a b", "a\tb", "a\nb", "a\r\nb", "\x01", "\x7f", "~", "-", "_", ":", ";", ".", "..", "a.", "...",
	"/", "//", "/a", "a/", "a/b", "a//b", "a/b/c", "a/./b", "a/../b", "/a/b", "zookeeper", "lock", "0", "a0",
	`\`, `a\b`, "%", "%%", "%s", "%d", "%00", "%2F", "%2f", "a%2Fb", "a%2fb", "a%252Fb", "a+b", "a b%20c", "a&b=c", "a?b", "a#b",
	"{", "}", "{}", "a{b", "a}b", "{a}", "a{b}c", "{a}{b}", "{}a", "a{}b{c}", "${x}", "{{a}}", "[a]", "*", "a*", "?", "(", "|", "^$",
	"'", "''", `"`, "`", "'; --", "$1", "<a>", "!", "@", "a,b", "a=b", "mode", "a:b", "a:b:c", "lock:{a}",
	"é", "e\u0301", "ß", "SS", "ss", "İ", "i", "日本語", "\u0639\u0631\u0628", "👩‍👩‍👧", "\u200b", "\ufeff", "\u202e", "\ufffd", "\U0010ffff",
}

// oddNames returns the odd names, and long ones. No other client uses these
// names.
func (e *env) oddNames() []string {
	var all []string
	for _, n := range oddNames {
		all = append(all, n+"|"+e.id, e.id+"|"+n)
	}
	long := e.id + strings.Repeat("n", 1024)
	return append(all, long[:1024], long[:1023], strings.Repeat("é", 500)+e.id, strings.Repeat("/", 200)+e.id, strings.Repeat("{", 200)+e.id)
}

func anyName(e *env) error {
	a, b := e.driver(), e.driver()
	for _, name := range e.oddNames() {
		r := a.acquire(name, noWait)
		if r.lease == nil {
			if errors.Is(r.err, errors.ErrUnsupported) {
				continue // a driver may report that its backend cannot keep a name
			}
			return fmt.Errorf("the name %.80q cannot be locked: %w", name, r.err)
		}
		if err := b.refused(name); err != nil {
			return err
		}
		r.release()
	}
	return nil
}

func distinctNames(e *env) error {
	a, b := e.driver(), e.driver()
	held := map[string]*request{}
	for _, name := range e.oddNames() {
		if held[name] != nil {
			continue
		}
		r := a.acquire(name, noWait)
		switch {
		case r.lease != nil:
			held[name] = r
		case !errors.Is(r.err, errors.ErrUnsupported):
			return fmt.Errorf("the name %.80q cannot be locked while different names are held: %w", name, r.err)
		}
	}
	for name, r := range held {
		r.release()
		if again := b.acquire(name, noWait); again.lease == nil {
			return fmt.Errorf("the name %.80q is not free after its release, while other names are held: %w", name, again.err)
		}
	}
	return nil
}

// alike returns the name x, and names that a backend may confuse with x or with
// other data that it stores for x. The most likely names come first.
func alike(x string) []string {
	number := fmt.Sprint(int64(1e11) + rand.N(int64(1e11)))
	return []string{
		x, "{" + x + "}", strings.ToLower(x), x + "/", number, "0" + number, "{" + x + "}y",
		"+" + number, "-" + number, number + ".0", " " + number, number + " ", number + "e0", number[:1] + "_" + number[1:],
		"{{" + x + "}}", "{" + x, x + "}", "{}" + x, "{" + x + "}{" + x + "}", "{" + x + "}}",
		x + "//", "/" + x, "./" + x, x + "/.", x + "/..", x + "/y/..", x + "/y", x + "/lock", x + "/here", x + "/limit", x + "/0000000001",
		x + ".", x + "..", x + " ", " " + x, x + "\t", x + "\n", x + "\x01", x + `\`, x + "*", x + "?", x + "+", x + "_", x + "-", x + "-0", x + "0", x + "\uffff",
		x + "%", x + "%25", x + "%2F", x + "%2f", x + "%00", x + "l", x + "%6c", x + "%6C",
		x + ":timeout", x + ":write", x + ":channel", x + ":permits", x + ":rwlock_timeout", x + ":seal", x + ":1", ":" + x,
		"dsync_fence:{" + x + "}", "dsync_holder:{" + x + "}", "dsync_turn:{" + x + "}", "dsync_latch:{" + x + "}", "redisson_lock_queue:{" + x + "}",
		x + "é", x + "e\u0301", x + "ﬁ", x + "fi", x + "1", x + "１", x + "K", x + "\u212a", x + "\u200b", x + "\ufeff", x + "ß", x + "ss",
	}
}

// waitersAlike is the number of similar names that get a waiter. On some
// backends, each waiter needs a connection.
const waitersAlike = 8

func alikeNames(e *env) error {
	even, odd := []driver.Mode{driver.Read, driver.Write}, []driver.Mode{driver.Write, driver.Read}
	var rounds [][]driver.Mode // the modes of the names, in turn
	for _, round := range [][]driver.Mode{{driver.Exclusive}, {driver.Write}, even, odd, {driver.Permit}} {
		if e.driverInfo().Offers(round[0]) {
			rounds = append(rounds, round)
		}
	}
	refused := make([]map[int]error, len(rounds))
	e.outsider()
	e.together("locks of similar names", len(rounds)+1, func(i int) (err error) {
		if i == len(rounds) {
			return e.latchesAlike()
		}
		refused[i], err = e.locksAlike(rounds[i])
		return err
	})
	names := alike("x")
	for i, round := range rounds {
		for n := range names {
			if (refused[0][n] == nil) != (refused[i][n] == nil) {
				return fmt.Errorf("in mode %v, number %d of the similar names, as in %q, got %q, and in mode %v it got %q; want the same",
					rounds[0][0], n, names[n], outcome(refused[0][n]), round[n%len(round)], outcome(refused[i][n]))
			}
		}
	}
	return nil
}

// locksAlike holds similar names, makes other requests wait for some of them,
// and returns the names that were refused.
func (e *env) locksAlike(round []driver.Mode) (refused map[int]error, err error) {
	a, b := e.driver(), e.driver()
	names := alike(e.name())
	mode := func(i int) option { return in(round[i%len(round)]) }
	held, waiting := make([]*request, len(names)), make([]*request, len(names))
	e.together("holds of similar names", len(names), func(i int) error {
		held[i] = a.acquire(names[i], mode(i), noWait)
		return nil
	})
	refused = map[int]error{}
	for i, r := range held {
		switch {
		case errors.Is(r.err, errors.ErrUnsupported):
			refused[i] = r.err
			held[i] = nil
		case r.lease == nil:
			return nil, fmt.Errorf("the free name %q cannot be held as %v while similar names are held: %w", names[i], r.Mode, r.err)
		}
	}
	for i := range waitersAlike {
		if held[i] != nil {
			waiting[i] = b.start(names[i], mode(i), in(held[i].rival())).waits()
		}
	}
	for half := range 2 {
		e.together("releases of similar names", len(names), func(i int) error {
			if held[i] == nil || i%2 != half {
				return nil
			}
			held[i].release()
			if waiting[i] != nil {
				waiting[i].granted().release()
			}
			return nil
		})
	}
	return refused, nil
}

// rival returns a mode that excludes the request.
func (r *request) rival() driver.Mode {
	if r.Mode == driver.Read {
		return driver.Write
	}
	return r.Mode
}

func (e *env) latchesAlike() error {
	a, b := e.driver(), e.outsider()
	backend, ok := a.tap.Driver.(driver.Latcher)
	if !ok {
		return nil
	}
	names := alike(e.name())
	var mu sync.Mutex
	refused := map[int]bool{}
	change := func(what string, f func(ctx context.Context, i int, id string) error) {
		e.together(what+" of similar names", len(names), func(i int) error {
			mu.Lock()
			skip := refused[i]
			mu.Unlock()
			if skip {
				return nil
			}
			err := f(e.ctx, i, e.changeID())
			if errors.Is(err, errors.ErrUnsupported) {
				mu.Lock()
				refused[i] = true
				mu.Unlock()
				return nil
			}
			if err != nil {
				return fmt.Errorf("%s of %q: %w", what, names[i], err)
			}
			return nil
		})
	}
	change("SetLatch", func(ctx context.Context, i int, id string) error {
		set, err := backend.SetLatch(ctx, names[i], id, i+2)
		if err == nil && !set {
			err = errors.New("there is a latch, want none")
		}
		return err
	})
	change("CountDown", func(ctx context.Context, i int, id string) error { return backend.CountDown(ctx, names[i], id) })
	for i, name := range names {
		if !refused[i] {
			b.latch(name).has(i+1, "after a countdown, alongside latches with similar names")
		}
	}
	change("DeleteLatch", func(ctx context.Context, i int, id string) error { return backend.DeleteLatch(ctx, names[i], id) })
	return nil
}

// The checks of driver.Open with Backend.URL.
var urlChecks = []check{
	{"url/fenced", "With fenced=false, leases have no tokens, and Info.Fencing is None.", urlWithoutTokens},
	{"url/parameters", "An unknown, malformed or repeated URL parameter causes an error that names the parameter.", urlParameters},
	{"url/common", "The parameters ttl and floor are accepted in addition to the driver's own.", urlCommon},
	{"url/unreachable", "Open of a backend that does not exist or does not answer fails within its context and does not reveal the password.", urlOfNobody},
	{"url/password", "Open with a password that the server refuses returns an error that does not contain the password.", urlWithWrongPassword},
}

// openFor is the lifetime of the context of an Open that must succeed.
const openFor = 10 * time.Second

// secret is a password that no server accepts.
const secret = "conformance-s3cret"

// open opens url. The driver is closed with the check.
func (e *env) open(ctx context.Context, url string) (d driver.Driver, err error) {
	e.within("driver.Open", func() { d, _, err = driver.Open(ctx, url) })
	if err == nil {
		e.onClose(func(ctx context.Context) { _ = d.Close(ctx) })
	}
	return d, err
}

// raw returns d as a client of the check that the check does not close.
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

// urlAt returns Backend.URL with a user and another password, and with another
// host unless host is "".
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

// fails returns an error unless opening url fails soon after the end of ctx,
// with an error that does not contain the secret.
func (e *env) fails(ctx context.Context, what, url string) error {
	switch d, err := e.open(ctx, url); {
	case err == nil:
		return fmt.Errorf("%s succeeded and returned the driver %s", what, d.Info().Name)
	case strings.Contains(err.Error(), secret):
		return fmt.Errorf("%s is an error that contains the password: %w", what, err)
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
		return fmt.Errorf("with fenced=false, Info.Fencing is %v", f)
	}
	h := e.raw(d).hold(e.name())
	if first, n := h.lease.Tokens(); first != 0 || n != 0 {
		return fmt.Errorf("with fenced=false, a lease has %d tokens from %d", n, first)
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
			return fmt.Errorf("a URL with %s succeeded and returned the driver %s", parameters, d.Info().Name)
		case !strings.Contains(err.Error(), name):
			return fmt.Errorf("the error for a URL with %s does not name the parameter %s: %w", parameters, name, err)
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
	ttl, floor := e.allowed(e.long()), uint64(1000)
	if e.driverInfo().Fencing == driver.None {
		floor = 0
	}
	params := fmt.Sprintf("ttl=%v&floor=%d", ttl, floor)
	url := e.url(params)
	var c *driver.Config
	var d driver.Driver
	var err error
	e.within("driver.Open", func() { d, c, err = driver.Open(ctx, url) })
	if err != nil {
		return fmt.Errorf("with %s: %w", params, err)
	}
	e.onClose(func(ctx context.Context) { _ = d.Close(ctx) })
	if c.TTL != ttl || c.Floor != floor {
		return fmt.Errorf("with %s, the Config has the TTL %v and the floor %d", params, c.TTL, c.Floor)
	}
	e.raw(d).hold(e.name()).release()
	return nil
}

// deaf listens on the loopback interface and never answers.
func (e *env) deaf() (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	e.must(err)
	ended := e.run(func() { // ends when the listener is closed
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
	e.together("Open of a backend that does not exist", len(hosts), func(i int) error {
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
		return fmt.Errorf("the error from an Open with a refused password contains the password: %w", err)
	case err != nil:
		return nil
	}
	r := e.raw(d).acquire(e.name(), noWait)
	if r.lease == nil {
		return fmt.Errorf("an Open with a wrong password succeeded, but the first request failed: %w", r.err)
	}
	r.release()
	e.end(&refusedError{"a password"}) // the server accepts any client
	return nil
}
