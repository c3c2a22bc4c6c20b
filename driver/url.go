package driver

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// URL is a parsed backend URL,
// scheme://user:password@host:port,host:port/path?parameter=value. Its errors
// name the wrong part and never the password.
//
// The methods below read parameters and record malformed values and the names
// that were read. [URL.Err] then reports the first bad value, or a parameter
// that was not read. So a typo in a URL is never silently ignored.
type URL struct {
	Scheme string
	User   *url.Userinfo // nil if there is none
	Hosts  []string      // "host", "host:port" or "[v6]:port", as written
	Path   string        // decoded, with its leading slash; "" if there is none

	query url.Values
	known []string
	err   error
}

// ParseURL parses s. Unlike url.Parse, ParseURL accepts a list of hosts with
// ports, and keeps the password out of its errors. An @ in the path or in a
// parameter must be written as %40.
func ParseURL(s string) (*URL, error) {
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || !validScheme(scheme) {
		return nil, errors.New("malformed backend URL: it does not start with a scheme, as in memory://")
	}
	u := &URL{Scheme: scheme}
	bad := func(part string) error { return fmt.Errorf("malformed %s URL: %s", scheme, part) }
	if i := strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 || !utf8.ValidString(s) {
		return nil, bad("control character or invalid UTF-8")
	}
	before, query, _ := strings.Cut(rest, "?")
	if strings.Contains(query, "@") {
		return nil, bad(strayAt)
	}
	err := u.parseBeforeQuery(before, bad)
	if err != nil {
		return nil, err
	}
	if u.query, err = url.ParseQuery(query); err != nil {
		return nil, bad("query cannot be decoded")
	}
	for name := range u.query {
		if strings.IndexFunc(name, notInParamName) >= 0 || name == "" {
			return nil, bad("name of a parameter (escape special characters of a password as %XX)")
		}
	}
	return u, nil
}

// strayAt is the error for a string that looks like hosts, a path and
// parameters, but may be a password with a / or ? inside.
const strayAt = "an @ after the host (write it as %40; escape special characters of a password as %XX)"

func notInParamName(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '.' || r == '-')
}

func (u *URL) parseBeforeQuery(s string, bad func(string) error) error {
	if strings.Contains(s, "#") {
		return bad("it has a fragment (write %23 for the character #)")
	}
	s, isAuthority := strings.CutPrefix(s, "//")
	if !isAuthority {
		if s != "" {
			return bad("no // after the scheme")
		}
		return nil
	}
	authority := s
	if i := strings.IndexByte(s, '/'); i >= 0 {
		if strings.Contains(s[i:], "@") {
			return bad(strayAt)
		}
		path, err := url.PathUnescape(s[i:])
		if err != nil {
			return bad("path cannot be decoded")
		}
		authority, u.Path = s[:i], path
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, hasPassword := strings.Cut(authority[:i], ":")
		user, err1 := url.PathUnescape(user)
		password, err2 := url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return bad("user or password cannot be decoded (escape special characters as %XX)")
		}
		if u.User = url.User(user); hasPassword {
			u.User = url.UserPassword(user, password)
		}
		authority = authority[i+1:]
	}
	if authority == "" {
		return nil
	}
	for h := range strings.SplitSeq(authority, ",") {
		if err := checkHost(h); err != nil {
			if u.User != nil { // the host may be the end of a password
				return bad("host or port (escape special characters of a password as %XX)")
			}
			return bad(err.Error())
		}
		u.Hosts = append(u.Hosts, h)
	}
	return nil
}

func validScheme(s string) bool {
	for i, c := range s {
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || !('0' <= c && c <= '9' || strings.ContainsRune("+-.", c))) {
			return false
		}
	}
	return s != ""
}

// checkHost returns an error that names at most the host: an apparent port may
// be a password whose @host was forgotten.
func checkHost(h string) error {
	rest, isV6 := strings.CutPrefix(h, "[")
	host, port, hasPort := strings.Cut(h, ":")
	if isV6 {
		var after string
		var closed bool
		host, after, closed = strings.Cut(rest, "]")
		addr, err := netip.ParseAddr(host)
		if port, hasPort = strings.CutPrefix(after, ":"); !closed || err != nil || !addr.Is6() || !hasPort && after != "" {
			return errors.New("a host that begins with a bracket is not an IPv6 address such as [::1] or [::1]:6379")
		}
	} else if host == "" || strings.ContainsAny(host, " /\\<>\"@[]") {
		return fmt.Errorf("host %q is not a host name (an IPv6 address needs brackets, as in [::1])", host)
	}
	if !hasPort {
		return nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port of host %q is not a number from 1 to 65535", host)
	}
	return nil
}

// HostsWithPort returns Hosts, with port added to each host without a port, or
// fallback if there are no hosts.
func (u *URL) HostsWithPort(fallback, port string) []string {
	hosts := slices.Clone(u.Hosts)
	if len(hosts) == 0 {
		hosts = []string{fallback}
	}
	for i, h := range hosts {
		if strings.HasSuffix(h, "]") || !strings.Contains(h, ":") {
			hosts[i] = h + ":" + port
		}
	}
	return hosts
}

// String returns the URL without its password and parameters, for errors and
// logs.
func (u *URL) String() string {
	s := u.Scheme + "://"
	if u.User != nil && u.User.Username() != "" {
		s += url.User(u.User.Username()).String() + "@"
	}
	return s + strings.Join(u.Hosts, ",") + (&url.URL{Path: u.Path}).EscapedPath()
}

// Has reports whether the parameter is given, and counts as reading it.
func (u *URL) Has(name string) bool {
	if !slices.Contains(u.known, name) {
		u.known = append(u.known, name)
	}
	values := u.query[name]
	if len(values) > 1 {
		u.fail(name, "it is given more than once")
	}
	return len(values) > 0
}

// Param returns the value of a parameter, or fallback if there is none.
func (u *URL) Param(name, fallback string) string {
	if !u.Has(name) {
		return fallback
	}
	return u.query[name][0]
}

// Choice returns the value of a parameter that must be one of options. The
// first option is the default.
func (u *URL) Choice(name string, options ...string) string {
	v := u.Param(name, options[0])
	if !slices.Contains(options, v) {
		u.fail(name, "not one of "+strings.Join(options, ", "))
		return options[0]
	}
	return v
}

// Bool returns the value of a parameter that is true or false.
func (u *URL) Bool(name string, fallback bool) bool {
	return u.Choice(name, strconv.FormatBool(fallback), strconv.FormatBool(!fallback)) == "true"
}

// Int returns the value of a parameter that is a decimal number from low to
// high.
func (u *URL) Int(name string, fallback, low, high int) int {
	if !u.Has(name) {
		return fallback
	}
	v := u.query[name][0]
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		u.fail(name, fmt.Sprintf("not a number from %d to %d", low, high))
		return fallback
	}
	return n
}

// unsigned returns the value of a parameter that is a decimal number up to
// high, or 0 if there is no such parameter.
func (u *URL) unsigned(name string, high uint64) uint64 {
	if !u.Has(name) {
		return 0
	}
	n, err := strconv.ParseUint(u.query[name][0], 10, 64)
	if err != nil || n > high {
		u.fail(name, fmt.Sprintf("not a number from 0 to %d", high))
		return 0
	}
	return n
}

// Duration returns the value of a parameter that is a positive duration with a
// unit, as in 1.5s.
func (u *URL) Duration(name string, fallback time.Duration) time.Duration {
	if !u.Has(name) {
		return fallback
	}
	v := u.query[name][0]
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		u.fail(name, "not a positive duration such as 30s or 500ms")
		return fallback
	}
	return d
}

// Password returns a function that returns the password of the URL. If the URL
// has the parameter password_file, the function reads that file at each call,
// and returns its content without surrounding white space. Password returns nil
// if the URL has neither.
func (u *URL) Password() func() (string, error) {
	file := u.Param("password_file", "")
	inURL, ok := "", false
	if u.User != nil {
		inURL, ok = u.User.Password()
	}
	switch {
	case file != "" && ok:
		u.fail("password_file", "the URL also has a password")
		return nil
	case file != "":
		return func() (string, error) {
			text, err := os.ReadFile(file)
			return strings.TrimSpace(string(text)), err
		}
	case ok:
		return func() (string, error) { return inURL, nil }
	}
	return nil
}

// Rest returns the parameters that have not been read so far, and counts as
// reading all of them. It is for drivers that pass unknown parameters on to
// their backend.
func (u *URL) Rest() map[string]string {
	rest := make(map[string]string)
	for name := range u.query {
		if !slices.Contains(u.known, name) {
			rest[name] = u.Param(name, "")
		}
	}
	return rest
}

// fail records what is wrong with a parameter. The record omits the value,
// which may be a misplaced password.
func (u *URL) fail(name, why string) {
	if u.err == nil {
		u.err = fmt.Errorf("%s URL: parameter %s: %s", u.Scheme, name, why)
	}
}

// Err returns an error with the first malformed parameter, or else a parameter
// that was not read. An opener calls Err after it has read all its parameters,
// and before it connects.
func (u *URL) Err() error {
	if u.err != nil {
		return u.err
	}
	var unknown []string
	for name := range u.query {
		if !slices.Contains(u.known, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	known := slices.Sorted(slices.Values(u.known))
	return fmt.Errorf("%s URL: unknown parameter %s (known: %s)", u.Scheme, strings.Join(unknown, ", "), strings.Join(known, ", "))
}
