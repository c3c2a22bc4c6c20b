package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// lockJSON is a lock in the output of `show --json`.
type lockJSON struct {
	Name, Mode, Hold, Owner, Note, Process string
	Held                                   bool
	Since                                  *time.Time
	TTLSeconds                             float64 `json:"ttl_seconds"`
	Token                                  uint64
	Holders, Waiters                       int
	Queue                                  []string
	Seen                                   time.Time
}

// shown returns the report of `show --json` about one name.
func (p *two) shown(url, name string) lockJSON {
	p.t.Helper()
	var reports []lockJSON
	r := p.bare("show", "--json", "--url", url, name).want(cli.ExitDone)
	if err := json.Unmarshal([]byte(r.out), &reports); err != nil || len(reports) != 1 {
		p.t.Fatalf("%v in\n%s", err, r.out)
	}
	return reports[0]
}

func TestShow(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	url := "redisson://" + s.Addr
	p, c := &two{t: t}, clitest.Client(t, url)
	lease := clitest.Lock(t, c, "a name")
	r := p.shown(url, "a name")
	if !r.Held || r.Mode != "exclusive" || r.Holders != 1 || r.Hold == "" || r.Process == "" || r.Token != lease.Token() || r.TTLSeconds <= 0 {
		t.Errorf("got %+v", r)
	}
	clitest.Lock(t, dsync.With(c, dsync.Read()), "read")
	p.bare("show", "--url", url, "a name", "read", "free").want(cli.ExitDone, `"a name"  held`, "process ", "token ", "read  read", "free  free")
}

func TestShowWatches(t *testing.T) {
	t.Parallel()
	const url = "memory://show-watches"
	c := clitest.Client(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, out := io.Pipe()
	var errs strings.Builder
	var command sync.WaitGroup
	command.Go(func() { // ends when ctx ends
		if status := run(ctx, []string{"show", "--watch", "--json", "--url", url, "x"}, nil, out, &errs); status != cli.ExitDone {
			t.Errorf("got status %d: %s", status, errs.String())
		}
		out.Close()
	})
	lines := json.NewDecoder(bufio.NewReader(in))
	next := func(held bool) {
		t.Helper()
		var r lockJSON
		if err := lines.Decode(&r); err != nil || r.Held != held || r.Name != "x" {
			t.Errorf("got %+v, %v, want held %t", r, err, held)
		}
	}
	next(false)
	lease := clitest.Lock(t, c, "x")
	next(true)
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	next(false)
	cancel()
	command.Wait()
}

// TestLs lists the held names on each backend that supports lists.
func TestLs(t *testing.T) {
	t.Parallel()
	for scheme, url := range map[string]string{
		"memory":   "memory://ls",
		"redisson": "redisson://" + testenv.Redis(t).Addr,
		"etcd":     "etcd://" + testenv.Etcd(t).Addr + "/locks/",
		"zk":       "zk://" + testenv.ZooKeeper(t).Addr,
		"pglock":   testenv.Postgres(t).URL("pglock") + "?sslmode=disable&key=pair",
	} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			p, c := &two{t: t}, clitest.Client(t, url)
			names := []string{"7/1", "7/2", "8/1"}
			for _, name := range names {
				clitest.Lock(t, c, name)
			}
			if err := clitest.Lock(t, c, "7/3").Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, want := p.bare("ls", "--url", url).want(cli.ExitDone).out, strings.Join(names, "\n")+"\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got, want := p.bare("ls", "--url", url, "7/").want(cli.ExitDone).out, "7/1\n7/2\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			p.bare("ls", "--long", "--url", url, "8/").want(cli.ExitDone, "NAME", "NOTE", "8/1 ", "  held ").not("7/1")
			p.bare("ls", "--json", "--url", url, "9").want(cli.ExitDone, "[]")
			if scheme == "pglock" {
				return // where names are numbers
			}
			const odd = "odd \t\"\\ * ? [x] %2F ł"
			clitest.Lock(t, c, odd)
			if got, want := p.bare("ls", "--url", url, odd[:7]).want(cli.ExitDone).out, odd+"\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestLsSaysThatItCannot(t *testing.T) {
	t.Parallel()
	p := &two{t: t}
	p.bare("ls", "--url", testenv.Postgres(t).URL("pglock")+"?sslmode=disable").want(cli.ExitRefused, "hashes of names", "key=number")
	p.bare("ls", "--url", "redis-string://"+testenv.Redis(t).Addr).want(cli.ExitRefused, "cannot list names")
}

func TestRelease(t *testing.T) {
	t.Parallel()
	const url = "memory://release"
	p, c := &two{t: t}, clitest.Client(t, url)
	lease := clitest.Lock(t, c, "x")
	p.bare("release", "--url", url, "x").want(cli.ExitUsage, "not a terminal", "--yes")
	p.bare("release", "--url", url, "--yes", "--hold", "other", "x").want(cli.ExitUnfinished, "held by another client")
	if err := lease.Err(); err != nil {
		t.Fatal(err)
	}
	p.bare("release", "--url", url, "--yes", "--hold", p.shown(url, "x").Hold, "x").want(cli.ExitDone, "x  held", "released")
	select {
	case <-lease.Done():
	case <-time.After(drivertest.HangGuard):
		t.Error("the holder was not notified")
	}
	p.bare("release", "--url", url, "--yes", "x").want(cli.ExitUnfinished, "not held")
	clitest.Lock(t, c, "x")
}

func TestPermits(t *testing.T) {
	t.Parallel()
	const url = "memory://permits"
	p, c := &two{t: t}, clitest.Client(t, url)
	p.bare("permits", "--url", url, "x").want(cli.ExitDone, "x  no limit is stored")
	p.bare("permits", "--url", url, "x", "none").want(cli.ExitUsage, "limit none")
	p.bare("permits", "--url", url, "x", "3").want(cli.ExitDone, "x  0 of 3 permits held")
	if _, err := c.Lock(t.Context(), "x", dsync.Permits(2, 0)); err != nil {
		t.Fatal(err)
	}
	p.bare("permits", "--url", url, "x").want(cli.ExitDone, "x  2 of 3 permits held, 0 waiting")
	p.bare("permits", "--url", url, "--json", "x", "1").want(cli.ExitDone, `"used": 2`, `"limit": 1`)
}

func TestURLs(t *testing.T) {
	const secret = testenv.PasswordMark
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte("memory://file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DSYNC_URL", "")
	p := &two{t: t}
	for _, test := range []struct {
		args   string
		status int
		want   string
	}{
		{"show x", cli.ExitUsage, "$DSYNC_URL"},
		{"show --url memory://a --url-file " + file + " x", cli.ExitUsage, "give one"},
		{"show --url redisson://user:" + secret + "@127.0.0.1 x", cli.ExitUsage, "all users of this machine can see"},
		{"doctor redisson://user:" + secret + "@127.0.0.1", cli.ExitUsage, "all users of this machine can see"},
		{"doctor pglock://127.0.0.1/?password=" + secret, cli.ExitUsage, "all users of this machine can see"},
		{"show --url redisson://127.0.0.1?mode=sentinel&sentinel_password=" + secret + " x", cli.ExitUsage, "all users of this machine can see"},
		{"ls --url pglock://127.0.0.1/?sslpassword=" + secret, cli.ExitUsage, "all users of this machine can see"},
		{"show --url user:" + secret + "@127.0.0.1 x", cli.ExitUsage, "malformed"},
		{"show --url-file /does/not/exist x", cli.ExitUsage, "/does/not/exist"},
		{"show --url-file " + file + " x", cli.ExitDone, "x  free"},
		{"show --url memory://a", cli.ExitUsage, "no names"},
		{"ls a b --url memory://a", cli.ExitUsage, "one prefix"},
		{"release --url memory://a --yes", cli.ExitUsage, "one name"},
	} {
		p.bare(strings.Fields(test.args)...).want(test.status, test.want).not(secret)
	}
	t.Setenv("DSYNC_URL", "redisson://user:"+secret+"@127.0.0.1:1")
	p.bare("show", "--connect", "1s", "x").want(cli.ExitFailed, "redisson://user@127.0.0.1:1").not(secret)
}

// TestURLFileOfOthers refuses a password that all users can read.
func TestURLFileOfOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	p := &two{t: t}
	for _, test := range []struct {
		url    string
		mode   os.FileMode
		status int
		want   string
	}{
		{"redisson://user:" + testenv.PasswordMark + "@127.0.0.1:1", 0o644, cli.ExitUsage, "mode 0644 lets all users of this machine read it: chmod o= " + file},
		{"redisson://user:" + testenv.PasswordMark + "@127.0.0.1:1", 0o602, cli.ExitUsage, "mode 0602"},
		{"redisson://user:" + testenv.PasswordMark + "@127.0.0.1:1", 0o640, cli.ExitFailed, "127.0.0.1:1"},
		{"migrate:?from=redisson%3A%2F%2Fu%3A" + testenv.PasswordMark + "%40h&to=memory:&phase=dual", 0o644, cli.ExitUsage, "mode 0644"},
		{"memory://url-file", 0o644, cli.ExitDone, "free"},
	} {
		if err := os.WriteFile(file, []byte(test.url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, test.mode); err != nil {
			t.Fatal(err)
		}
		p.bare("show", "--connect", "100ms", "--url-file", file, "x").want(test.status, test.want).not(testenv.PasswordMark)
	}
}
