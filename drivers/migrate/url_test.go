package migrate_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestURL(t *testing.T) {
	for _, phase := range phases {
		raw := "migrate:?from=" + url.QueryEscape("memory://a?order=unordered") + "&to=" + url.QueryEscape("memory://b") +
			"&require=fenced&ttl=5s&phase=" + phase.String()
		d, _, err := driver.Open(t.Context(), raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.(*migrate.Driver).Phase(); got != phase {
			t.Errorf("got phase %v, want %v", got, phase)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestURLErrors(t *testing.T) {
	for _, test := range []struct{ query, want string }{
		{"from=memory:&phase=dual", "URLs of two backends"},
		{"from=memory:&to=memory:&phase=dual", "are the same"},
		{"from=memory://a&to=memory://b", "parameter phase"},
		{"from=memory://a&to=memory://b&phase=both", `"both" is not dual or new, or old with a gate`},
		{"from=memory://a&to=memory://b&phase=dual&x=y", "unknown parameter x"},
		{"from=nothing://a&to=memory://b&phase=dual", `parameter from: unknown backend "nothing"`},
		{"from=memory://a&to=memory://b%3Fttl%3D3s&phase=dual", "parameter to has a ttl"},
		{"from=memory://a&to=memory://b%3Ffenced%3Dfalse&phase=dual", "has fencing tokens and memory has none"},
		{"from=memory://a%3Ffenced%3Dfalse&to=memory://b&phase=dual&require=fenced", "tokens are required, but at least one backend has none"},
		{"from=memory://a&to=memory://b&phase=dual&fenced=false&require=fenced", "fenced=false"},
		{"from=memory://a&to=memory://b&phase=dual&require=fair", "is not fair"},
		{"from=memory://a&to=memory://b&phase=dual&require=rw", "backend migrate has no read-write locks: unsupported operation"},
		{"from=memory://a&to=memory://b&phase=dual&require=permits", "backend migrate has no permits, because a limit cannot be kept on two backends at a time"},
		{"from=memory://a&to=memory://a%3Forder%3Dfifo&phase=dual", "the same backend under two addresses"},
		{"from=memory://a&to=memory://b&phase=old&gate=true", "tokens would fall"},
		{"from=memory://a&to=memory://b&phase=old", "phase old exists only with a gate"},
		{"from=redis://u:" + testenv.PasswordMark + "%40h&to=memory://b&phase=dual", "unknown backend"},
	} {
		d, _, err := driver.Open(t.Context(), "migrate:?"+test.query)
		if err == nil {
			t.Errorf("%s: got no error, want an error with %q", test.query, test.want)
			_ = d.Close(t.Context())
		} else if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%s: got error %q, want an error with %q", test.query, err, test.want)
		}
	}
	a, err := driver.ParseURL("memory://a") // after a refusal, open backends were closed
	if err != nil {
		t.Fatal(err)
	}
	if d, _, err := driver.Open(t.Context(), a.String()+"?order=unordered"); err != nil {
		t.Errorf("after the errors: %v", err)
	} else if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestURLWithAGate(t *testing.T) {
	open := func(phase migrate.Phase) (driver.Driver, error) {
		d, _, err := driver.Open(t.Context(), "migrate:?from=memory://a&to=memory://b&gate=true&fenced=false&phase="+phase.String())
		return d, err
	}
	a, err := open(migrate.PhaseNew)
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(migrate.PhaseDual)
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(migrate.PhaseOld)
	var behind *migrate.BehindError
	if !errors.As(err, &behind) || len(behind.Members) != 1 || !strings.HasPrefix(behind.Members[0].Hold, a.(*migrate.Driver).ID()) {
		t.Errorf("phase old while a process is in phase new: got %v, want an error that names that process", err)
	}
	for _, d := range []driver.Driver{a, b} {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// picky does not permit names of the migration.
type picky struct{ *memory.Driver }

func (d picky) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if strings.HasPrefix(r.Name, "dsync:") {
		return nil, errors.New("no permission")
	}
	return d.Driver.Acquire(ctx, r)
}

func init() {
	driver.Register("picky", func(context.Context, *driver.Config) (driver.Driver, error) { return picky{memory.New(nil)}, nil })
}

func TestURLOfABackendThatPermitsFewNames(t *testing.T) {
	d, _, err := driver.Open(t.Context(), "migrate:?from=picky://&to=memory://b&phase=dual")
	if err != nil {
		t.Fatal(err)
	}
	release(t, lock(t, d, "x"))
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
