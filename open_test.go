package dsync_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestOpen(t *testing.T) {
	c, err := dsync.Open(t.Context(), "memory://?ttl=5s&require=fair,fifo,fenced", &dsync.Options{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.TTL(), 5*time.Second; got != want {
		t.Errorf("TTL %v, want the URL's TTL, %v", got, want)
	}
	if got := c.Info(); got.Name != "memory" || got.Detect == 0 {
		t.Errorf("Info: %+v", got)
	}
	if err := mustLock(t, c, "x").Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOpenOfABadURLNamesWhatIsWrong(t *testing.T) {
	for url, want := range map[string]string{
		"":               "scheme",
		"127.0.0.1:6379": "scheme",
		"mysql://root:" + testenv.PasswordMark + "@h": `unknown backend "mysql": import _ "github.com/go-dsync/dsync/drivers/sqllock"`,
		"mongo://root:" + testenv.PasswordMark + "@h": `unknown backend "mongo" (forgotten import of its driver? registered: memory`,
		"memory://?ttl=soon":                          "parameter ttl: not a positive duration such as 30s or 500ms",
		"memory://?ttl=-1s":                           "parameter ttl: not a positive duration such as 30s or 500ms",
		"memory://?ttl=1ns":                           "TTL 1ns is shorter than 10ms",
		"memory://?ttl=10":                            "parameter ttl: not a positive duration such as 30s or 500ms",
		"memory://?color=red":                         "unknown parameter color",
		"memory://?require=fast":                      "parameter require: not one of fair, fifo, fenced, rw",
		"memory://?fenced=false&require=fenced":       "no fencing tokens",
		"memory://?ttl=1s&ttl=2s":                     "ttl: it is given more than once",
	} {
		_, err := dsync.Open(t.Context(), url, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "dsync: open: ") {
			t.Errorf("Open(%q): %v, want an error with %q", url, err, want)
		} else if strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("Open(%q): the error shows the password: %v", url, err)
		}
	}
}

func TestTTLIsFittedToTheBackend(t *testing.T) {
	info := driver.Info{Name: "stub", MinTTL: 2 * time.Second, MaxTTL: 20 * time.Second, TTLUnit: time.Second}
	c := newClient(t, &stub{info: info}, nil)
	if got, want := c.TTL(), 20*time.Second; got != want {
		t.Errorf("default TTL %v, want the longest that the backend keeps, %v", got, want)
	}
	for _, ttl := range []time.Duration{-time.Second, time.Second, time.Minute, 2500 * time.Millisecond} {
		_, err := dsync.New(&stub{info: info}, &dsync.Options{TTL: ttl})
		if err == nil || !strings.Contains(err.Error(), ttl.String()) {
			t.Errorf("New with TTL %v: %v, want an error that names the TTL", ttl, err)
		}
	}
	_, err := dsync.New(&stub{info: info}, &dsync.Options{TTL: time.Minute})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "2s to 20s") {
		t.Errorf("New: %v, want ErrUnsupported with the bounds", err)
	}
}

func TestRequire(t *testing.T) {
	for _, r := range []driver.Require{{Fair: true}, {FIFO: true}, {Fenced: true}} {
		if _, err := dsync.New(&stub{}, &dsync.Options{Require: r}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("New with %+v on a driver that promises nothing: %v, want ErrUnsupported", r, err)
		}
		good := &stub{info: driver.Info{Order: driver.FIFO, Fencing: driver.Durable}}
		newClient(t, good, &dsync.Options{Require: r})
	}
}
