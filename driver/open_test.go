package driver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// opened is a driver that records only how it was opened.
type opened struct {
	driver.Driver
	info   driver.Info
	config *driver.Config
	closed int
}

func (d *opened) Info() driver.Info           { return d.info }
func (d *opened) Close(context.Context) error { d.closed++; return nil }

var schemes atomic.Int64

// newScheme returns a scheme that is not registered, not even by an earlier run
// of the test.
func newScheme(name string) string { return fmt.Sprintf("%s-%d", name, schemes.Add(1)) }

// register makes a scheme that opens d, and reads the parameter size.
func register(d *opened) (scheme string) {
	scheme = newScheme("test")
	driver.Register(scheme, func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		d.config = c
		c.URL.Int("size", 1, 1, 9)
		return d, nil
	})
	return scheme
}

func TestOpen(t *testing.T) {
	d := &opened{info: driver.Info{Name: "open", Order: driver.FIFO, Fencing: driver.Durable}}
	scheme := register(d)
	got, c, err := driver.Open(t.Context(), scheme+"://u:p@h/x?ttl=3s&fenced=false&require=fair,fifo,fenced&size=2")
	if err != nil {
		t.Fatal(err)
	}
	if got != d || c != d.config {
		t.Errorf("got driver %v and config %v, want those of the opener", got, c)
	}
	if c.TTL != 3*time.Second || c.Fenced || c.Require != (driver.Require{Fair: true, FIFO: true, Fenced: true}) || c.URL.Path != "/x" {
		t.Errorf("got %+v", c)
	}
	if _, c, err = driver.Open(t.Context(), scheme+":"); err != nil || c.TTL != 0 || !c.Fenced || c.Require != (driver.Require{}) {
		t.Errorf("without parameters: got %+v and error %v", c, err)
	}
	if d.closed != 0 {
		t.Errorf("the driver was closed %d times, want 0", d.closed)
	}
}

func TestOpenTTLIsThatOfAURLWithoutOne(t *testing.T) {
	d := &opened{}
	scheme := register(d)
	for url, want := range map[string]time.Duration{":": 7 * time.Second, ":?ttl=3s": 3 * time.Second} {
		if _, c, err := driver.OpenTTL(t.Context(), scheme+url, 7*time.Second); err != nil || c.TTL != want || d.config.TTL != want {
			t.Errorf("%s: got %+v and error %v, want TTL %v", url, c, err, want)
		}
	}
}

func TestOpenWithAContextThatIsOverOpensNothing(t *testing.T) {
	d := &opened{}
	scheme := register(d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, _, err := driver.Open(ctx, scheme+":"); got != nil || !errors.Is(err, context.Canceled) || d.config != nil {
		t.Errorf("got %v and error %v, and the opener was called: %t; want only the error of the context", got, err, d.config != nil)
	}
}

func TestOpenErrors(t *testing.T) {
	d := &opened{info: driver.Info{Name: "weak"}}
	scheme := register(d)
	for _, test := range []struct {
		url, want string
		opens     bool
	}{
		{"", "does not start with a scheme", false},
		{"://u:" + testenv.PasswordMark + "@h:x", "port", false},
		{"-nosuch://u:" + testenv.PasswordMark + "@h", `-nosuch" (forgotten import of its driver? registered: `, false},
		{"://u:" + testenv.PasswordMark + "@h?ttl=10", "parameter ttl", false},
		{"://u:" + testenv.PasswordMark + "@h?fenced=1", "parameter fenced", false},
		{"://u:" + testenv.PasswordMark + "@h?require=fast", `parameter require: not one of fair, fifo, fenced`, false},
		{"://u:" + testenv.PasswordMark + "@h?require=fair,", `parameter require: not one of`, false},
		{"://u:" + testenv.PasswordMark + "@h?size=10", "parameter size", true},
		{"://u:" + testenv.PasswordMark + "@h?sise=1", "unknown parameter sise (known: fenced, floor, require, size, ttl)", true},
		{"://u:" + testenv.PasswordMark + "@h?require=fair", "backend weak is not fair", true},
		{"://u:" + testenv.PasswordMark + "@h?require=fifo", "does not grant in order of arrival", true},
		{"://u:" + testenv.PasswordMark + "@h?require=fenced", "no fencing tokens", true},
		{"://u:" + testenv.PasswordMark + "@h?floor=-1", "parameter floor: not a number from 0 to", false},
		{"://u:" + testenv.PasswordMark + "@h?floor=4611686018427387905", "parameter floor: not a number from 0 to", false},
		{"://u:" + testenv.PasswordMark + "@h?floor=1&fenced=false", "parameter floor: with fenced=false there are no tokens", false},
		{"://u:" + testenv.PasswordMark + "@h?floor=1", "backend weak has no fencing tokens to add a floor to", true},
	} {
		d.closed = 0
		got, c, err := driver.Open(t.Context(), scheme+test.url)
		if err == nil || got != nil || c != nil {
			t.Errorf("%s: got %v, %v and error %v, want an error only", test.url, got, c, err)
			continue
		}
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%s: got error %q, want an error with %q and no password", test.url, err, test.want)
		}
		if want := map[bool]int{true: 1}[test.opens]; d.closed != want {
			t.Errorf("%s: the driver was closed %d times, want %d", test.url, d.closed, want)
		}
	}
}

func TestOpenReturnsTheErrorOfTheOpener(t *testing.T) {
	want := errors.New("no route")
	scheme := newScheme("failing")
	driver.Register(scheme, func(context.Context, *driver.Config) (driver.Driver, error) { return nil, want })
	if d, _, err := driver.Open(t.Context(), scheme+"://h"); !errors.Is(err, want) || d != nil {
		t.Errorf("got %v and error %v, want %v", d, err, want)
	}
}

func TestUnknownBackendNamesThoseThatThereAre(t *testing.T) {
	first, second := register(&opened{}), register(&opened{})
	schemes := driver.Schemes()
	if !slices.IsSorted(schemes) || !slices.Contains(schemes, first) || !slices.Contains(schemes, second) {
		t.Errorf("Schemes: got %v, want them in order, and %s and %s among them", schemes, first, second)
	}
	_, _, err := driver.Open(t.Context(), "elsewhere://h")
	if want := "registered: " + strings.Join(schemes, ", ") + ")"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want an error with %q", err, want)
	}
}

func TestRegisterPanics(t *testing.T) {
	taken := register(&opened{})
	open := func(context.Context, *driver.Config) (driver.Driver, error) { return nil, nil }
	for _, test := range []struct {
		scheme string
		open   driver.Opener
		want   string
	}{
		{taken, open, "called twice"},
		{"", open, "malformed scheme"},
		{"Upper", open, "malformed scheme"},
		{"a/b", open, "malformed scheme"},
		{"9a", open, "malformed scheme"},
		{"nil", nil, "no opener"},
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, test.want) {
					t.Errorf("Register(%q): got panic %q, want a panic with %q", test.scheme, got, test.want)
				}
			}()
			driver.Register(test.scheme, test.open)
		}()
	}
}

func TestParseRequire(t *testing.T) {
	for s, want := range map[string]driver.Require{
		"":                 {},
		"fair":             {Fair: true},
		"fenced,fifo":      {FIFO: true, Fenced: true},
		"fair,fifo,fenced": {Fair: true, FIFO: true, Fenced: true},
		"rw,fair":          {Fair: true, RW: true},
		"permits,rw":       {RW: true, Permits: true},
	} {
		if got, err := driver.ParseRequire(s); err != nil || got != want {
			t.Errorf("%q: got %+v and error %v, want %+v", s, got, err, want)
		}
	}
	for _, s := range []string{"fast", "fair, fifo", ",", "Fair"} {
		if _, err := driver.ParseRequire(s); err == nil {
			t.Errorf("%q: got no error", s)
		}
	}
}

func TestCheckRequire(t *testing.T) {
	all := driver.Require{Fair: true, FIFO: true, Fenced: true}
	for _, test := range []struct {
		info    driver.Info
		require driver.Require
		want    string // text of the error; "" for none
	}{
		{driver.Info{Order: driver.FIFO, Fencing: driver.Durable}, all, ""},
		{driver.Info{Order: driver.FIFO, Fencing: driver.Volatile}, all, ""},
		{driver.Info{}, driver.Require{}, ""},
		{driver.Info{Order: driver.FIFOByClient}, driver.Require{Fair: true}, ""},
		{driver.Info{Order: driver.FIFOByClient}, driver.Require{FIFO: true}, "its order: fifo by client"},
		{driver.Info{Order: driver.Unordered}, driver.Require{Fair: true}, "its order: unordered"},
		{driver.Info{Order: driver.FIFO}, all, "no fencing tokens"},
		{driver.Info{}, driver.Require{RW: true}, "no read-write locks"},
		{driver.Info{ReadWrite: driver.Support{Offered: true}}, driver.Require{RW: true}, ""},
		{
			driver.Info{Order: driver.FIFO, ReadWrite: driver.Support{Offered: true}}, driver.Require{Fair: true, RW: true},
			"is not fair for reads and writes (its order: unordered)",
		},
		{
			driver.Info{Fencing: driver.Durable, ReadWrite: driver.Support{Offered: true}}, driver.Require{Fenced: true, RW: true},
			"no fencing tokens for reads and writes",
		},
		{driver.Info{ReadWrite: driver.Support{Offered: true, Order: driver.FIFO}}, driver.Require{Fair: true, RW: true}, "is not fair (its"},
		{driver.Info{Name: "b"}, driver.Require{Permits: true}, "backend b has no permits: "},
		{driver.Info{Name: "b", Permits: driver.Support{Why: "so"}}, driver.Require{Permits: true}, "backend b has no permits, because so: "},
		{driver.Info{Fencing: driver.Durable, Permits: driver.Support{Offered: true}}, driver.Require{Permits: true, Fenced: true}, ""},
		{
			driver.Info{Order: driver.FIFO, Permits: driver.Support{Offered: true, Order: driver.FIFOByClient}}, driver.Require{Permits: true, FIFO: true},
			"does not grant in order of arrival for permits",
		},
	} {
		err := test.info.Check(test.require)
		if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v of %+v: got error %v, want %q", test.require, test.info, err, test.want)
		}
	}
}

func TestCheckTTL(t *testing.T) {
	bounded := driver.Info{Name: "b", MinTTL: 2 * time.Second, MaxTTL: time.Minute, TTLUnit: time.Second}
	for _, test := range []struct {
		info driver.Info
		ttl  time.Duration
		want string // text of the error; "" for none
		is   error
	}{
		{driver.Info{}, 1, "", nil},
		{driver.Info{}, 1 << 62, "", nil},
		{driver.Info{}, 0, "not positive", nil},
		{bounded, -time.Second, "not positive", nil},
		{bounded, 2 * time.Second, "", nil},
		{bounded, time.Minute, "", nil},
		{bounded, time.Second, "(2s to 1m0s)", errors.ErrUnsupported},
		{bounded, 61 * time.Second, "(2s to 1m0s)", errors.ErrUnsupported},
		{bounded, 2500 * time.Millisecond, "multiple of 1s", errors.ErrUnsupported},
		{driver.Info{MinTTL: time.Second}, time.Millisecond, "(1s to any)", errors.ErrUnsupported},
	} {
		err := test.info.CheckTTL(test.ttl)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%v of %+v: got error %v", test.ttl, test.info, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%v of %+v: got error %v, want an error with %q", test.ttl, test.info, err, test.want)
		case errors.Is(err, errors.ErrUnsupported) != (test.is != nil):
			t.Errorf("%v of %+v: does %v match ErrUnsupported? want %v", test.ttl, test.info, err, test.is != nil)
		}
	}
}

func TestNamesOfOrdersAndFencings(t *testing.T) {
	for got, want := range map[string]string{
		driver.Unordered.String():    "unordered",
		driver.FIFOByClient.String(): "fifo by client",
		driver.FIFO.String():         "fifo",
		driver.Order(9).String():     "invalid order",
		driver.None.String():         "none",
		driver.Volatile.String():     "volatile",
		driver.Durable.String():      "durable",
		driver.Fencing(9).String():   "invalid fencing",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
