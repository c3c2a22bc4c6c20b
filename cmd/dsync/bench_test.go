package main

import (
	"context"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestBenchRefuses(t *testing.T) {
	t.Parallel()
	const url = "memory://bench-refuses"
	p, c := &two{t: t}, clitest.Client(t, url)
	clitest.Lock(t, c, "work")
	for _, test := range []struct {
		args   string
		status int
		want   string
	}{
		{"--for 1ms " + url, cli.ExitUnfinished, "in use: work is held"},
		{"--for 1ms --yes " + url, cli.ExitDone, ""},
		{"--rate -1 " + url, cli.ExitUsage, "--rate"},
		{"--callers 513 " + url, cli.ExitUsage, "1 to 512"},
		{"--for 61s " + url, cli.ExitUsage, "at most 1m0s"},
		{"--prefix= " + url, cli.ExitUsage, "--prefix"},
		{"--prefix dsync:migrate: " + url, cli.ExitUsage, "reserved"},
		{"--for 50ms memory://", cli.ExitFailed, "do not exclude each other"},
		{"migrate:?from=memory%3A%2F%2Fa&to=memory%3A%2F%2Fb&phase=dual", cli.ExitRefused, "one of its backends"},
		{"redisson://user:" + testenv.PasswordMark + "@127.0.0.1", cli.ExitUsage, "all users of this machine"},
		{"redisson://127.0.0.1:1 --connect 10ms", cli.ExitFailed, "127.0.0.1:1"},
	} {
		r := p.bare(append([]string{"bench"}, strings.Fields(test.args)...)...)
		if r.status != test.status || !strings.Contains(r.errors, test.want) {
			t.Errorf("%s: got status %d, %q, want %d, %q", test.args, r.status, r.errors, test.status, test.want)
		}
		r.not(testenv.PasswordMark)
	}
}

func TestBenchWarnsOfWhatItCannotSee(t *testing.T) {
	t.Parallel()
	r := (&two{t: t}).bare("bench", "--for", "1ms", "plainbench://x")
	if r.status != cli.ExitDone || !strings.Contains(r.errors, "does not report whether it is in use") {
		t.Errorf("got status %d, %q", r.status, r.errors)
	}
}

// unlisted is a backend that cannot list held names.
type unlisted struct{ driver.Driver }

func init() {
	driver.Register("plainbench", func(ctx context.Context, c *driver.Config) (driver.Driver, error) {
		d, _, err := driver.Open(ctx, "memory://"+c.URL.Hosts[0])
		return unlisted{d}, err
	})
}
