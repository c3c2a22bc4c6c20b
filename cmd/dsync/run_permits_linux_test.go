package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestRunOfPermits(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	url := "redisson://" + server.Addr
	client := clitest.Client(t, url)
	run := func(t *testing.T, args string) ended {
		return dsyncRun(t, append([]string{"--url", url}, strings.Fields(args)...)...)
	}
	t.Run("few are free", func(t *testing.T) {
		t.Parallel()
		l, err := client.Lock(t.Context(), "x", dsync.Permits(2, 3))
		if err != nil {
			t.Fatal(err)
		}
		run(t, "--try --permits 1/3 x -- printenv DSYNC_TOKEN").is(cli.ExitFailed)
		run(t, "--try --permits 1/0 x -- echo ran").is(cli.ExitDone, "ran")
		run(t, "--try --permits 2/3 x -- echo ran").is(cli.ExitLocked, "locked by another owner")
		run(t, "--wait 100ms --permits 2/3 x -- echo ran").is(cli.ExitLocked, "locked by another owner")
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		run(t, "--try --settle --ttl 3s --permits 3/3 x -- echo ran").is(cli.ExitDone, "ran")
	})
	t.Run("another limit", func(t *testing.T) {
		t.Parallel()
		run(t, "--permits 1/0 y -- echo ran").is(cli.ExitMisused, "limit")
		if err := client.SetLimit(t.Context(), "y", 3); err != nil {
			t.Fatal(err)
		}
		run(t, "--permits 1/4 y -- echo ran").is(cli.ExitMisused, "limit")
		run(t, "--permits 3/0 y -- echo ran").is(cli.ExitDone, "ran")
		run(t, "--permits 4/0 y -- echo ran").is(cli.ExitMisused, "limit")
	})
	t.Run("no permits", func(t *testing.T) {
		t.Parallel()
		dsyncRun(t, "--url", "redis-string://"+server.Addr, "--permits", "1/2", "z", "--", "echo", "ran").is(cli.ExitMisused, "no permits")
	})
	t.Run("a limit per period", func(t *testing.T) {
		t.Parallel()
		for range 2 {
			run(t, "--try --at-least 1m --permits 1/2 w -- true").is(cli.ExitDone)
		}
		run(t, "--try --at-least 1m --permits 1/2 w -- true").is(cli.ExitLocked)
	})
	t.Run("concurrently", func(t *testing.T) { t.Parallel(); permitsAtOnce(t, server, url) })
}

// permitsAtOnce runs ten commands that each acquire one or two of three
// permits. Each command appends its number of permits to a file, and at the end
// the number that it releases. The sum of the first lines up to any line is the
// number held at that moment.
func permitsAtOnce(t *testing.T, server *testenv.RedisServer, url string) {
	const limit, commands = 3, 10
	dir := t.TempDir()
	file, gate := filepath.Join(dir, "held"), filepath.Join(dir, "gate")
	sum := func() (held, most, lines int) {
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var n int
			if _, err := fmt.Sscan(line, &n); err != nil {
				t.Fatal(err)
			}
			held, lines = held+n, lines+1
			most = max(most, held)
		}
		return held, most, lines
	}
	script := `echo $1 >> ` + file + `; until test -e ` + gate + `; do sleep 0.02; done; echo -$1 >> ` + file
	var all sync.WaitGroup
	for i := range commands {
		n := fmt.Sprint(1 + i%2)
		all.Go(func() {
			dsyncRun(t, "--url", url, "--permits", n+"/"+fmt.Sprint(limit), "v", "--", "sh", "-c", script, "sh", n).is(cli.ExitDone)
		})
	}
	testenv.Eventually(t, func() bool {
		held, _, _ := sum()
		return held == limit && server.SubscriberCount("redisson_sc:{v}") >= commands-limit
	}, "all permits are held, and the other commands wait")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if held, most, lines := sum(); held != 0 || most > limit || lines != 2*commands {
		t.Errorf("got %d permits at a time and %d lines, and %d permits were not released; want at most %d, and %d lines", most, lines, held, limit, 2*commands)
	}
}
