package driver_test

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestParseURL(t *testing.T) {
	for _, test := range []struct {
		url      string
		user     *url.Userinfo
		hosts    []string
		path     string
		asString string
	}{
		{"memory:", nil, nil, "", "memory://"},
		{"memory://", nil, nil, "", "memory://"},
		{"memory:?a=b", nil, nil, "", "memory://"},
		{"etcd://h1:2379,h2,10.0.0.1:2379/a/b", nil, []string{"h1:2379", "h2", "10.0.0.1:2379"}, "/a/b", "etcd://h1:2379,h2,10.0.0.1:2379/a/b"},
		{"zk://[::1]:2181,[fe80::1]/", nil, []string{"[::1]:2181", "[fe80::1]"}, "/", "zk://[::1]:2181,[fe80::1]/"},
		{"zk://[fe80::1%eth0]:1", nil, []string{"[fe80::1%eth0]:1"}, "", "zk://[fe80::1%eth0]:1"},
		{"x:///a%2Fb%20c%40d", nil, nil, "/a/b c@d", "x:///a/b%20c@d"},
		{"x://u@h", url.User("u"), []string{"h"}, "", "x://u@h"},
		{"x://u:@h", url.UserPassword("u", ""), []string{"h"}, "", "x://u@h"},
		{"x://:p@h", url.UserPassword("", "p"), []string{"h"}, "", "x://h"},
		{"x://u:p@", url.UserPassword("u", "p"), nil, "", "x://u@"},
		{"x://u%3A%40:p%2F%3F%23%40%25%20@h:1/db?a=1", url.UserPassword("u:@", "p/?#@% "), []string{"h:1"}, "/db", "x://u%3A%40@h:1/db"},
		{"x://u:p:q@r,s@h,i", url.UserPassword("u", "p:q@r,s"), []string{"h", "i"}, "", "x://u@h,i"},
		{"x+y-z.1://h", nil, []string{"h"}, "", "x+y-z.1://h"},
	} {
		u, err := driver.ParseURL(test.url)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		if !slices.Equal(u.Hosts, test.hosts) || u.Path != test.path {
			t.Errorf("%s: got hosts %q and path %q, want %q and %q", test.url, u.Hosts, u.Path, test.hosts, test.path)
		}
		if (u.User == nil) != (test.user == nil) || u.User != nil && *u.User != *test.user {
			t.Errorf("%s: got user %#v, want %#v", test.url, u.User, test.user)
		}
		if got := u.String(); got != test.asString {
			t.Errorf("%s: String: got %s, want %s", test.url, got, test.asString)
		}
	}
}

func TestParseURLErrors(t *testing.T) {
	const password = "special characters of a password"
	for _, test := range []struct{ url, want string }{
		{"", "does not start with a scheme"},
		{"h:1", "no // after the scheme"},
		{"1x://h", "does not start with a scheme"},
		{"Redis://h", "does not start with a scheme"},
		{"//h", "does not start with a scheme"},
		{"x:/h", "no // after the scheme"},
		{"x://h#a", "fragment"},
		{"x://h\n", "control character"},
		{"x://h/\xff", "invalid UTF-8"},
		{"x://h/%zz", "path cannot be decoded"},
		{"x://h?a=%zz", "query cannot be decoded"},
		{"x://h?a;b", "query cannot be decoded"},
		{"x://h?=1", "name of a parameter"},
		{"x://h?a/b=1", "name of a parameter"},
		{"x://h,,i", `host ""`},
		{"x://:1", `host ""`},
		{"x://a b", `host "a b" is not a host name`},
		{"x://a]", `host "a]" is not a host name`},
		{"x://::1", "needs brackets"},
		{"x://[::1", "is not an IPv6 address"},
		{"x://[]", "is not an IPv6 address"},
		{"x://[h]:1", "is not an IPv6 address"},
		{"x://[1.2.3.4]", "is not an IPv6 address"},
		{"x://[::1]1", "is not an IPv6 address"},
		{"x://[::1]:", "port of host \"::1\""},
		{"x://h:", `port of host "h"`},
		{"x://h:0", `port of host "h"`},
		{"x://h:+1", `port of host "h"`},
		{"x://h:65536", `port of host "h"`},
		{"x://user:" + testenv.PasswordMark + "", `port of host "user"`},
		// Passwords that are not escaped.
		{"x://user:%" + testenv.PasswordMark + "@h", "escape special characters"},
		{"x://user:" + testenv.PasswordMark + "/@h", password},
		{"x://user:1/" + testenv.PasswordMark + "@h", password},
		{"x://user:1?" + testenv.PasswordMark + "@h", password},
		{"x://user:1?" + testenv.PasswordMark + "=1@h", password},
		{"x://user:1?a=1&" + testenv.PasswordMark + "@h", password},
		{"x://user:1@2/" + testenv.PasswordMark + "@h", password},
		{"x://user:a#" + testenv.PasswordMark + "@h", "fragment"},
		{"x://user:" + testenv.PasswordMark + "@h:x", password},
		{"x://user:" + testenv.PasswordMark + "@@h", ""},
	} {
		u, err := driver.ParseURL(test.url)
		if test.want == "" {
			if err != nil {
				t.Errorf("%q: %v", test.url, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%q: got %v, want an error with %q", test.url, u, test.want)
			continue
		}
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%q: got error %q, want an error with %q and no secret", test.url, err, test.want)
		}
	}
}

// FuzzParseURL puts a marked password into a URL. The password must not appear
// in any error or log, whatever else is wrong.
func FuzzParseURL(f *testing.F) {
	f.Add("user", "", "", "h:1", "/0?mode=single")
	f.Add("", "1/", "@", "[::1]", "?ttl=0s&ttl=1s")
	f.Add("u%", "1?a=", "%40#", "h,,i", "#")
	f.Add("a@b", "@1&", "=1&b=", "", "?x;y")
	f.Fuzz(func(t *testing.T, user, before, after, hosts, rest string) {
		const mark = "zzQQzz"
		if strings.Contains(user+hosts+rest, mark) {
			return
		}
		raw := "x://" + user + ":" + before + mark + after + "@" + hosts + rest
		u, err := driver.ParseURL(raw)
		if err != nil {
			if strings.Contains(err.Error(), mark) {
				t.Errorf("%q: the password is in the error %q", raw, err)
			}
			return
		}
		u.Choice("mode", "single", "cluster")
		u.Bool("tls", false)
		u.Int("db", 0, 0, 15)
		u.Duration("ttl", time.Second)
		shown := []string{u.String(), u.Path, u.User.Username()}
		if err := u.Err(); err != nil {
			shown = append(shown, err.Error())
		}
		shown = append(shown, u.Hosts...)
		shown = append(shown, u.HostsWithPort("h", "1")...)
		for _, s := range shown {
			if strings.Contains(s, mark) {
				t.Errorf("%q: the password is shown in %q", raw, s)
			}
		}
		if password, _ := u.User.Password(); !strings.Contains(password, mark) {
			t.Errorf("%q: got password %q", raw, password)
		}
	})
}

func TestHostsWithPort(t *testing.T) {
	for _, test := range []struct {
		url  string
		want []string
	}{
		{"x:", []string{"localhost:7"}},
		{"x://a,b:1,[::1],[::2]:2", []string{"a:7", "b:1", "[::1]:7", "[::2]:2"}},
	} {
		u, err := driver.ParseURL(test.url)
		if err != nil {
			t.Fatal(err)
		}
		before := slices.Clone(u.Hosts)
		if got := u.HostsWithPort("localhost", "7"); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.url, got, test.want)
		}
		if !slices.Equal(u.Hosts, before) {
			t.Errorf("%s: Hosts changed to %q", test.url, u.Hosts)
		}
	}
}

func TestURLParameters(t *testing.T) {
	u, err := driver.ParseURL("x://h?s=a%20b%40&empty=&c=two&yes=true&no=false&n=-3&d=1.5s")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		what      string
		got, want any
	}{
		{"Param", u.Param("s", "other"), "a b@"},
		{"empty Param", u.Param("empty", "other"), ""},
		{"absent Param", u.Param("absent", "other"), "other"},
		{"Choice", u.Choice("c", "one", "two"), "two"},
		{"absent Choice", u.Choice("absent", "one", "two"), "one"},
		{"Bool true", u.Bool("yes", false), true},
		{"Bool false", u.Bool("no", true), false},
		{"absent Bool", u.Bool("absent", true), true},
		{"Int", u.Int("n", 1, -3, 3), -3},
		{"absent Int", u.Int("absent", 99, 0, 3), 99},
		{"Duration", u.Duration("d", time.Hour), 1500 * time.Millisecond},
		{"absent Duration", u.Duration("absent", time.Hour), time.Hour},
		{"Has", u.Has("s"), true},
		{"absent Has", u.Has("absent"), false},
		{"Err", u.Err(), nil},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %v, want %v", test.what, test.got, test.want)
		}
	}
}

func TestURLParameterErrors(t *testing.T) {
	read := func(u *driver.URL) error {
		u.Choice("c", "one", "two")
		u.Bool("b", false)
		u.Int("n", 0, 1, 3)
		u.Duration("d", time.Second)
		return u.Err()
	}
	for query, want := range map[string]string{
		"c=three":        `parameter c: not one of one, two`,
		"b=yes":          `parameter b: not one of false, true`,
		"b=":             `parameter b: not one of`,
		"n=4":            `parameter n: not a number from 1 to 3`,
		"n=x":            `parameter n: not a number`,
		"d=30":           `parameter d: not a positive duration such as 30s`,
		"d=0s":           `parameter d:`,
		"d=-1s":          `parameter d:`,
		"c=one&c=one":    `parameter c: it is given more than once`,
		"c=four&b=yes":   `parameter c:`, // the first
		"z=1&ttl2=3&c=x": `parameter c:`, // before parameters that were not read
		"z=1&ttl2=3":     `unknown parameter ttl2, z (known: b, c, d, n)`,
		"C=one":          `unknown parameter C`,
	} {
		u, err := driver.ParseURL("x://h?" + query)
		if err != nil {
			t.Fatal(err)
		}
		if err := read(u); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "x URL: ") {
			t.Errorf("%s: got error %v, want an error with %q", query, err, want)
		}
	}
}

func TestPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	parse := func(text string) *driver.URL {
		u, err := driver.ParseURL(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if read := parse("x://u@h").Password(); read != nil {
		t.Error("a URL without a password: got a password")
	}
	fixed := testenv.Password()
	if got, err := parse("x://u:" + fixed + "@h").Password()(); got != fixed || err != nil {
		t.Errorf("got a password that is not the URL's, or error %v", err)
	}
	u := parse("x://u@h?password_file=" + url.QueryEscape(file))
	read := u.Password()
	if _, err := read(); !errors.Is(err, fs.ErrNotExist) || u.Err() != nil {
		t.Errorf("without the file: got error %v, and error %v for the URL", err, u.Err())
	}
	for range 2 {
		want := testenv.Password()
		if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := read(); got != want || err != nil {
			t.Errorf("got a password that is not the file's, or error %v", err)
		}
	}
	both := parse("x://u:" + fixed + "@h?password_file=" + url.QueryEscape(file))
	if both.Password(); both.Err() == nil || strings.Contains(both.Err().Error(), fixed) {
		t.Errorf("a URL with two passwords: got error %v", both.Err())
	}
}
