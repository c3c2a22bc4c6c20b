package main

import (
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestHelpIsAManual(t *testing.T) {
	p := inMemory(t).bareURLs()
	for _, args := range []string{"migrate --help", "migrate", "help migrate"} {
		p.bare(strings.Fields(args)...).want(exitDone, "Exit status", "DSYNC_FROM", "plan", "status", "seal", "finalize", "rollback")
	}
	p.bare("--help").want(exitDone, "migrate")
	p.bare().want(exitDone, "migrate")
	for _, c := range []string{"plan", "status", "seal", "finalize", "rollback"} {
		p.bare("migrate", c, "--help").want(exitDone, "exit status is ", "--from")
	}
}

func TestWrongUseIsToldApart(t *testing.T) {
	p := inMemory(t).bareURLs()
	const secret = testenv.PasswordMark
	withSecret := "redisson://user:" + secret + "@127.0.0.1:1"
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"frob"}, exitUsage, "no command frob"},
		{[]string{"migrate", "frob"}, exitUsage, "no command frob"},
		{[]string{"migrate", withSecret}, exitUsage, "has no command"},
		{[]string{"migrate", "plan", "--rate", "1"}, exitUsage, "unknown flag"},
		{[]string{"migrate", "seal", "--rate", withSecret}, exitUsage, "takes none"},
		{[]string{"migrate", "plan", "--from", p.from}, exitUsage, "--to is needed"},
		{[]string{"migrate", "plan", "--to", p.to}, exitUsage, "--from is needed"},
		{[]string{"migrate", "plan", "--from", "user:" + secret + "@h", "--to", p.to}, exitUsage, "--from"},
		{[]string{"migrate", "plan", "--from", "redisson://user:" + secret + "/@h", "--to", p.to}, exitUsage, "--from"},
		{[]string{"migrate", "plan", "--from", "nothing://user:" + secret + "@h", "--to", p.to}, exitFailed, `unknown backend "nothing"`},
		{[]string{"migrate", "plan", "--from", withSecret, "--to", p.to}, exitFailed, "redisson://user@127.0.0.1:1"},
		{[]string{"migrate", "seal", "x", "--from", withSecret, "--to", p.to}, exitFailed, "backend unavailable"},
		{[]string{"migrate", "plan", "--from", withSecret, "--to", withSecret + "?fenced=false"}, exitRefused, "same backend"},
		{[]string{"migrate", "status", "x", "--from", p.from, "--to", "migrate:?from=memory:&to=memory://x&phase=dual"}, exitUsage, "migrate URL"},
		{[]string{"migrate", "status", "x", "--from", p.from + "?ttl=3s", "--to", p.to}, exitUsage, "--ttl"},
		{[]string{"migrate", "status", "x", "--from", p.from, "--to", p.to + "?require=fair"}, exitRefused, "--to requires an order"},
		{[]string{"migrate", "status", "x", "--from", p.from, "--to", p.to + "?require=much"}, exitUsage, "require"},
		{[]string{"migrate", "status", "--from", p.from, "--to", p.to}, exitUsage, "there are no names"},
		{[]string{"migrate", "finalize", "--from", p.from, "--to", p.to}, exitUsage, "there are no names"},
		{[]string{"migrate", "rollback", "--from", p.from, "--to", p.to}, exitUsage, "there are no names"},
		{[]string{"migrate", "seal", "--from", p.from, "--to", p.to}, exitUsage, "there are no names"},
		{[]string{"migrate", "seal", "--all", "--from", p.from, "--to", p.to}, exitUsage, "go together"},
		{[]string{"migrate", "seal", "--names", "x", "--from", p.from, "--to", p.to}, exitUsage, "go together"},
		{[]string{"migrate", "seal", "x", "--rate", "-1", "--from", p.from, "--to", p.to}, exitUsage, "--rate"},
		{[]string{"migrate", "seal", "x", "--rate", "1e-9", "--from", p.from, "--to", p.to}, exitUsage, "--rate"},
		{[]string{"migrate", "seal", "x", "--rate", "NaN", "--from", p.from, "--to", p.to}, exitUsage, "--rate"},
		{[]string{"migrate", "seal", "x", "--wait", "-1s", "--from", p.from, "--to", p.to}, exitUsage, "--wait"},
		{[]string{"migrate", "plan", "--connect", "0s", "--from", p.from, "--to", p.to}, exitUsage, "--connect"},
		{[]string{"migrate", "plan", "x", "--from", p.from, "--to", p.to}, exitUsage, "takes no arguments"},
		{[]string{"migrate", "status", "--names", "/does/not/exist", "--from", p.from, "--to", p.to}, exitUsage, "/does/not/exist"},
		{[]string{"migrate", "seal", "dsync:migrate:old:0", "--from", p.from, "--to", p.to}, exitUsage, "reserved"},
		{[]string{"migrate", "seal", "a\x00b", "--from", p.from, "--to", p.to}, exitUsage, "UTF-8"},
		{[]string{"migrate", "seal", "x", "--gate", "--fenced=false", "--from", p.from, "--to", p.to}, exitRefused, "no seals"},
		{[]string{"migrate", "rollback", "x", "--gate", "--fenced=false", "--from", p.from, "--to", p.to}, exitRefused, "no seals"},
		{[]string{"migrate", "status", "--gate", "--from", p.from, "--to", p.to}, exitRefused, "tokens would fall"},
		{[]string{"migrate", "seal", "x", "--from", p.from, "--to", p.to + "?fenced=false"}, exitFailed, "open with other parameters"},
		{[]string{"migrate", "seal", "x", "--from", p.from, "--to", "memory://?fenced=false"}, exitRefused, "tokens would fall"},
	} {
		r := p.bare(test.args...).want(test.status, test.want)
		r.not(secret)
		r.not("sealed: ")
	}
	p.wantState("idle", "x")
}

func TestURLsFromTheEnvironment(t *testing.T) {
	p := inMemory(t).bareURLs()
	t.Setenv("DSYNC_FROM", p.from)
	t.Setenv("DSYNC_TO", p.to)
	p.bare("migrate", "status", "x").want(exitDone, p.from+" → "+p.to, "1 idle")
}

func TestNamesFromAFile(t *testing.T) {
	p := inMemory(t).bareURLs()
	p.stdin = "a\n\na\nwith a space\nb"
	s := p.status(exitDone, "b", "c", "--names", "-")
	var got []string
	for _, n := range s.Names {
		got = append(got, n.Name)
	}
	if got, want := strings.Join(got, ","), "b,c,a,with a space"; got != want {
		t.Errorf("got names %s, want %s", got, want)
	}
	p.stdin = "a\n" + strings.Repeat("x", 1025)
	p.run("status", "--names", "-").want(exitUsage, "line 2", "1 to 1024 bytes")
	p.run("status", "a\tb").want(exitDone, `"a\tb"`)
}
