package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunRole(map[string]func(){"clerk": clerkMain})
	testenv.RunProgram(main)
	// Commands of tests must receive each signal, even if the caller of the
	// tests ignores some, as nohup does or a shell for background jobs. A
	// signal that a program catches is not ignored in its child processes.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	clitest.Main(m)
}

// two is a pair of backends, with the means to run the command on them.
type two struct {
	t        *testing.T
	from, to string
	stdin    string
	ctx      context.Context // the test's context unless it is set
}

var pairs atomic.Int64

// inMemory returns two backends that live until the end of the test.
func inMemory(t *testing.T) *two {
	n := pairs.Add(1)
	p := &two{t: t, from: fmt.Sprintf("memory://old%d", n), to: fmt.Sprintf("memory://new%d?floor=%d", n, uint64(1)<<52)}
	drivertest.Open(t, p.from)
	drivertest.Open(t, p.to)
	return p
}

// bareURLs omits the floor of the new backend.
func (p *two) bareURLs() *two {
	p.to, _, _ = strings.Cut(p.to, "?")
	return p
}

// result is the outcome of the command.
type result struct {
	t           *testing.T
	args        string
	status      int
	out, errors string
}

// run runs `dsync migrate` with the URLs of the two.
func (p *two) run(args ...string) result {
	p.t.Helper()
	return p.bare(append([]string{"migrate", "--from", p.from, "--to", p.to}, args...)...)
}

func (p *two) bare(args ...string) result {
	p.t.Helper()
	ctx := p.ctx
	if ctx == nil {
		ctx = drivertest.Guard(p.t)
	}
	var out, errors bytes.Buffer
	status := run(ctx, args, strings.NewReader(p.stdin), &out, &errors)
	return result{p.t, strings.Join(args, " "), status, out.String(), errors.String()}
}

// want fails the test unless the command ended with the status and its output
// contains all texts. It returns its receiver.
func (r result) want(status int, texts ...string) result {
	r.t.Helper()
	if r.status != status || (r.errors == "") != (status == cli.ExitDone) {
		r.t.Errorf("%s: got status %d, errors %q, want status %d\n%s", r.args, r.status, r.errors, status, r.out)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.errors, text) {
			r.t.Errorf("%s: want %q in\n%s%s", r.args, text, r.out, r.errors)
		}
	}
	return r
}

// not fails the test if the command's output contains the text.
func (r result) not(text string) {
	r.t.Helper()
	if strings.Contains(r.out+r.errors, text) {
		r.t.Errorf("%s: %q is in\n%s%s", r.args, text, r.out, r.errors)
	}
}

// statusJSON is the output of `status --json`.
type statusJSON struct {
	Moved, Held, Idle, Behind int
	Names                     []nameJSON
}

type nameJSON struct {
	Name, State, Mode, Hold, Owner, Behind string
	HeldOn                                 string  `json:"held_on"`
	TTLSeconds                             float64 `json:"ttl_seconds"`
	TokenFloor                             uint64  `json:"token_floor"`
	Holders, Waiters                       int
}

// status returns the JSON status of the names.
func (p *two) status(wantExit int, names ...string) statusJSON {
	p.t.Helper()
	r := p.run(append([]string{"status", "--json"}, names...)...).want(wantExit)
	var s statusJSON
	if err := json.Unmarshal([]byte(r.out), &s); err != nil {
		p.t.Fatalf("%v in\n%s", err, r.out)
	}
	return s
}

// wantState fails the test unless all names are in the state.
func (p *two) wantState(state string, names ...string) {
	p.t.Helper()
	for _, n := range p.status(cli.ExitDone, names...).Names {
		if n.State != state {
			p.t.Errorf("%s: got state %s, want %s", n.Name, n.State, state)
		}
	}
}
