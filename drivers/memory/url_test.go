package memory_test

import (
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func openURL(t *testing.T, url string) driver.Driver {
	t.Helper()
	d, _, err := driver.Open(t.Context(), url)
	if err != nil {
		t.Fatalf("open %s: %v", url, err)
	}
	return d
}

// locked reports whether name is locked on d, and locks it otherwise.
func locked(t *testing.T, d driver.Driver) bool {
	t.Helper()
	a := newAttempt("x")
	a.NoWait = true
	_, err := d.Acquire(t.Context(), &a.Request)
	if err != nil {
		wantErr(t, "acquire", err, driver.ErrLocked)
	}
	return err != nil
}

func TestURLWithoutNameIsABackendOfItsOwn(t *testing.T) {
	for range 2 {
		d := openURL(t, "memory://")
		if locked(t, d) {
			t.Error("two Opens share a backend")
		}
		defer d.Close(t.Context())
	}
}

func TestURLWithNameIsShared(t *testing.T) {
	const url = "memory://shared"
	first, second, other := openURL(t, url), openURL(t, url), openURL(t, "memory://other")
	locked(t, first)
	if !locked(t, second) {
		t.Error("two drivers of one name were granted the same lock")
	}
	if locked(t, other) {
		t.Error("backends of different names share a lock")
	}
	if err := other.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := driver.Open(t.Context(), url+"?order=unordered"); err == nil || !strings.Contains(err.Error(), "other parameters") {
		t.Errorf("opened with other parameters: got error %v", err)
	}
	if err := second.Close(t.Context()); err != nil {
		t.Error(err)
	}
	third := openURL(t, url)
	if !locked(t, third) {
		t.Error("the backend did not outlive its second driver")
	}
	for _, d := range []driver.Driver{first, third} {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	fourth := openURL(t, url+"?order=unordered") // all drivers were closed, so this is a new backend
	if err := fourth.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestURLParameters(t *testing.T) {
	for _, test := range []struct {
		url  string
		want driver.Info
	}{
		{"memory://", driver.Info{Order: driver.FIFO, Fencing: driver.Volatile}},
		{"memory:", driver.Info{Order: driver.FIFO, Fencing: driver.Volatile}},
		{"memory://?order=fifo&require=fair,fifo,fenced&ttl=3s", driver.Info{Order: driver.FIFO, Fencing: driver.Volatile}},
		{"memory://?order=clients&fenced=false", driver.Info{Order: driver.FIFOByClient}},
		{"memory://?order=unordered&keepalive=true", driver.Info{Fencing: driver.Volatile, KeepsAlive: true}},
	} {
		d := openURL(t, test.url)
		got := d.Info()
		if got.Name != "memory" || got.Order != test.want.Order || got.Fencing != test.want.Fencing || got.KeepsAlive != test.want.KeepsAlive {
			t.Errorf("%s: got %+v, want %+v", test.url, got, test.want)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for url, want := range map[string]string{
		"memory://?order=lifo":                            "order",
		"memory://?keepalive=yes":                         "keepalive",
		"memory://?colour=red":                            "colour",
		"memory://?order=unordered&require=fair":          "fair",
		"memory://?fenced=false&require=fenced":           "fencing",
		"memory://user:" + testenv.PasswordMark + "@name": "without user",
		"memory://a,b":                                    "second name",
		"memory://name/path":                              "path",
		"memory://name:1?order=clients&order=unordered":   "more than once",
	} {
		d, _, err := driver.Open(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%s: got %v and error %v, want an error that names %q", url, d, err, want)
		}
	}
}
