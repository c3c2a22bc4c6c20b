package main

import (
	"strings"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestHelpIsAManual(t *testing.T) {
	p := inMemory(t).bareURLs()
	for _, args := range []string{"migrate --help", "migrate", "help migrate"} {
		p.bare(strings.Fields(args)...).want(cli.ExitDone, "Exit status", "DSYNC_FROM", "plan", "status", "seal", "finalize", "rollback")
	}
	p.bare("--help").want(cli.ExitDone, "migrate")
	p.bare().want(cli.ExitDone, "migrate")
	for _, c := range []string{"plan", "status", "seal", "finalize", "rollback"} {
		p.bare("migrate", c, "--help").want(cli.ExitDone, "exit status is ", "--from")
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
		{[]string{"frob"}, cli.ExitUsage, "no command frob"},
		{[]string{"migrate", "frob"}, cli.ExitUsage, "no command frob"},
		{[]string{"migrate", withSecret}, cli.ExitUsage, "has no command"},
		{[]string{"migrate", "plan", "--rate", "1"}, cli.ExitUsage, "unknown flag"},
		{[]string{"migrate", "seal", "--rate", withSecret}, cli.ExitUsage, "takes no URL"},
		{[]string{"migrate", "plan", "--from", p.from}, cli.ExitUsage, "--to is needed"},
		{[]string{"migrate", "plan", "--to", p.to}, cli.ExitUsage, "--from is needed"},
		{[]string{"migrate", "plan", "--from", "user:" + secret + "@h", "--to", p.to}, cli.ExitUsage, "--from"},
		{[]string{"migrate", "plan", "--from", "redisson://user:" + secret + "/@h", "--to", p.to}, cli.ExitUsage, "--from"},
		{[]string{"migrate", "plan", "--from", "nothing://user:" + secret + "@h", "--to", p.to}, cli.ExitFailed, `unknown backend "nothing"`},
		{[]string{"migrate", "plan", "--from", withSecret, "--to", p.to}, cli.ExitFailed, "redisson://user@127.0.0.1:1"},
		{[]string{"migrate", "seal", "x", "--from", withSecret, "--to", p.to}, cli.ExitFailed, "backend unavailable"},
		{[]string{"migrate", "plan", "--from", withSecret, "--to", withSecret + "?fenced=false"}, cli.ExitRefused, "same backend"},
		{[]string{"migrate", "status", "x", "--from", p.from, "--to", "migrate:?from=memory:&to=memory://x&phase=dual"}, cli.ExitUsage, "migrate URL"},
		{[]string{"migrate", "status", "x", "--from", p.from + "?ttl=3s", "--to", p.to}, cli.ExitUsage, "--ttl"},
		{[]string{"migrate", "status", "x", "--from", p.from, "--to", p.to + "?require=fair"}, cli.ExitRefused, "--to requires an order"},
		{[]string{"migrate", "status", "x", "--from", p.from, "--to", p.to + "?require=much"}, cli.ExitUsage, "require"},
		{[]string{"migrate", "status", "--from", p.from, "--to", p.to}, cli.ExitUsage, "no names"},
		{[]string{"migrate", "finalize", "--from", p.from, "--to", p.to}, cli.ExitUsage, "no names"},
		{[]string{"migrate", "rollback", "--from", p.from, "--to", p.to}, cli.ExitUsage, "no names"},
		{[]string{"migrate", "seal", "--from", p.from, "--to", p.to}, cli.ExitUsage, "no names"},
		{[]string{"migrate", "seal", "--all", "--from", p.from, "--to", p.to}, cli.ExitUsage, "require each other"},
		{[]string{"migrate", "seal", "--names", "x", "--from", p.from, "--to", p.to}, cli.ExitUsage, "require each other"},
		{[]string{"migrate", "seal", "x", "--rate", "-1", "--from", p.from, "--to", p.to}, cli.ExitUsage, "--rate"},
		{[]string{"migrate", "seal", "x", "--rate", "1e-9", "--from", p.from, "--to", p.to}, cli.ExitUsage, "--rate"},
		{[]string{"migrate", "seal", "x", "--rate", "NaN", "--from", p.from, "--to", p.to}, cli.ExitUsage, "--rate"},
		{[]string{"migrate", "seal", "x", "--wait", "-1s", "--from", p.from, "--to", p.to}, cli.ExitUsage, "--wait"},
		{[]string{"migrate", "plan", "--connect", "0s", "--from", p.from, "--to", p.to}, cli.ExitUsage, "--connect"},
		{[]string{"migrate", "status", "--names", "/does/not/exist", "--from", p.from, "--to", p.to}, cli.ExitUsage, "/does/not/exist"},
		{[]string{"migrate", "seal", "dsync:migrate:old:0", "--from", p.from, "--to", p.to}, cli.ExitUsage, "reserved"},
		{[]string{"migrate", "seal", "a\x00b", "--from", p.from, "--to", p.to}, cli.ExitUsage, "UTF-8"},
		{[]string{"migrate", "seal", "x", "--gate", "--fenced=false", "--from", p.from, "--to", p.to}, cli.ExitRefused, "no seals"},
		{[]string{"migrate", "rollback", "x", "--gate", "--fenced=false", "--from", p.from, "--to", p.to}, cli.ExitRefused, "no seals"},
		{[]string{"migrate", "status", "--gate", "--from", p.from, "--to", p.to}, cli.ExitRefused, "tokens would fall"},
		{[]string{"migrate", "seal", "x", "--from", p.from, "--to", p.to + "?fenced=false"}, cli.ExitFailed, "open with other parameters"},
		{[]string{"migrate", "seal", "x", "--from", p.from, "--to", "memory://?fenced=false"}, cli.ExitRefused, "tokens would fall"},
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
	p.bare("migrate", "status", "x").want(cli.ExitDone, p.from+" → "+p.to, "1 idle")
}

func TestNamesFromAFile(t *testing.T) {
	p := inMemory(t).bareURLs()
	p.stdin = "a\n\na\nwith a space\nb"
	s := p.status(cli.ExitDone, "b", "c", "--names", "-")
	var got []string
	for _, n := range s.Names {
		got = append(got, n.Name)
	}
	if got, want := strings.Join(got, ","), "b,c,a,with a space"; got != want {
		t.Errorf("got names %s, want %s", got, want)
	}
	p.stdin = "a\n" + strings.Repeat("x", 1025)
	p.run("status", "--names", "-").want(cli.ExitUsage, "line 2", "1 to 1024 bytes")
	p.run("status", "a\tb").want(cli.ExitDone, `"a\tb"`)
}
