package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// runbookTTL is that of the programs.
const runbookTTL = 5 * time.Second

// fleet is programs that lock names all the while, and resources that check who may use them.
type fleet struct {
	*two
	gated    bool
	tokens   bool // the old backend has them
	listed   []string
	all      []string // with names that nobody has listed
	programs []*program
	stranger *program                  // it knows the old backend alone
	frozen   *program                  // it misses a restart
	launch   func(raw string) *program // in another process; nil: programs are clients in this one
	tries    int                       // of a command that does not end with 0

	mu     sync.Mutex
	inside map[string]bool
	last   map[string]uint64 // token
	fenced bool              // whether resources ask for tokens
	grants int
}

// program locks one name after the other.
type program struct {
	client *dsync.Client // nil in another process
	stop   context.CancelFunc
	done   chan struct{}
}

func (f *fleet) start(raw string, names []string) *program {
	f.t.Helper()
	if f.launch != nil {
		return f.launch(raw)
	}
	c, err := dsync.Open(f.t.Context(), raw, &dsync.Options{TTL: runbookTTL})
	if err != nil {
		f.t.Fatalf("a program with another URL: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{c, cancel, make(chan struct{})}
	go func() { // ends with ctx
		defer close(p.done)
		for i := 0; ctx.Err() == nil; i++ {
			f.use(ctx, c, names[i%len(names)])
			pause(ctx, 2*time.Millisecond)
		}
	}()
	return p
}

func (f *fleet) end(p *program) {
	f.t.Helper()
	p.stop()
	<-p.done
	if p.client == nil {
		return
	}
	if err := p.client.Close(drivertest.Guard(f.t)); err != nil {
		f.t.Error(err)
	}
}

// use locks a name and uses its resource.
func (f *fleet) use(ctx context.Context, c *dsync.Client, name string) {
	bound, cancel := context.WithTimeout(ctx, runbookTTL)
	defer cancel()
	l, err := c.Lock(bound, name)
	if err != nil {
		return
	}
	if l.Err() == nil {
		f.enter(name, l.Token())
		pause(ctx, time.Millisecond)
		f.leave(name)
	}
	_ = l.Unlock(ctx)
}

func (f *fleet) enter(name string, token uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inside[name] {
		f.t.Errorf("two holders of %s", name)
	}
	if f.fenced && token <= f.last[name] {
		f.t.Errorf("%s: got token %d after %d", name, token, f.last[name])
	}
	if token > 0 {
		f.last[name] = token
	}
	f.inside[name] = true
	f.grants++
}

func (f *fleet) leave(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside[name] = false
}

// token returns the last token of a name.
func (f *fleet) token(name string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last[name]
}

// setFenced says whether tokens are to rise from here on.
func (f *fleet) setFenced(fenced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fenced = fenced
}

// restart gives all programs another URL, one after the other.
func (f *fleet) restart(raw string) {
	f.t.Helper()
	for i, p := range f.programs {
		if p != nil && p == f.frozen {
			continue
		}
		f.programs[i] = f.start(raw, f.all)
		if p != nil {
			f.end(p)
		}
		pause(f.t.Context(), 50*time.Millisecond)
	}
}

// phase returns the programs' URL.
func (f *fleet) phase(p string) string {
	more := ""
	if f.gated {
		more = "&gate=true&fenced=false"
	}
	return "migrate:?phase=" + p + more + "&from=" + url.QueryEscape(f.from) + "&to=" + url.QueryEscape(f.to)
}

var (
	phaseOf = regexp.MustCompile(`phase=(old|dual|new)`)
	floorOf = regexp.MustCompile(`floor=(\d+)`)
)

// line does what a line of the runbook says. It returns what a command said.
func (f *fleet) line(text, said, file string) string {
	f.t.Helper()
	command, ok := strings.CutPrefix(text, "dsync ")
	switch {
	case ok:
		args := strings.Fields(command)
		for i, arg := range args {
			switch arg {
			case "names.txt":
				args[i] = file
			case "10m":
				args[i] = "1s"
			}
		}
		f.t.Setenv("DSYNC_FROM", f.from)
		f.t.Setenv("DSYNC_TO", f.to)
		for try := 1; ; try++ {
			if r := f.bare(args...); r.status == cli.ExitDone || try >= f.tries {
				return r.want(cli.ExitDone).out
			}
			pause(f.t.Context(), time.Second)
		}
	case strings.Contains(text, "floor=FLOOR") && !f.tokens:
		if strings.Contains(said, "floor=") {
			f.t.Errorf("plan told a floor for tokens that there are not:\n%s", said)
		}
	case strings.Contains(text, "floor=FLOOR"):
		found := floorOf.FindString(said)
		if found == "" {
			f.t.Fatalf("plan told no floor:\n%s", said)
		}
		sign := "?"
		if strings.Contains(f.to, "?") {
			sign = "&"
		}
		f.to += sign + found
	case strings.Contains(text, "stop them"), strings.Contains(text, "none is left with the URL of the old backend"), strings.Contains(text, "cut off whoever"):
		if f.stranger != nil {
			f.end(f.stranger)
			f.stranger = nil
		}
	case strings.Contains(text, "the old URL"):
		f.restart(f.from)
	case strings.Contains(text, "have to do without"):
		f.setFenced(false)
	}
	switch m := phaseOf.FindStringSubmatch(text); {
	case !strings.Contains(text, "restart all programs"):
	case strings.Contains(text, "URL of the new backend alone"):
		f.restart(f.to)
		f.setFenced(true)
	case m != nil && f.gated != strings.Contains(text, "gate=true&fenced=false"):
		f.t.Errorf("the line gives programs a URL of the other procedure: %q", text)
	case m != nil:
		f.restart(f.phase(m[1]))
	}
	return said
}

// The runbooks of docs/migration.md.
const (
	sealsTitle = "Runbook with seals"
	gateTitle  = "Runbook with a gate"
	backTitle  = "The way back"
)

// runbookLines returns the lines of one in docs/migration.md.
func runbookLines(t *testing.T, title string) (lines []string) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "migration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## "+title+"\n")
	_, rest, ok2 := strings.Cut(rest, "```sh\n")
	block, _, ok3 := strings.Cut(rest, "```")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("docs/migration.md has no %s", title)
	}
	for s := bufio.NewScanner(strings.NewReader(block)); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

// TestRunbooks runs those of docs/migration.md line by line, beside a program that knows the old backend alone until it is stopped, and with a
// name that nobody locks meanwhile.
func TestRunbooks(t *testing.T) {
	redis := func(t *testing.T) string { return "redisson://" + testenv.Redis(t).Addr }
	etcd := func(t *testing.T) string { return "etcd://" + testenv.Etcd(t).Addr + "/locks/" }
	texts := func(t *testing.T) string { return "redis-string://" + testenv.Redis(t).Addr + "?durable=true" }
	zk := func(t *testing.T) string { return "zk://" + testenv.ZooKeeper(t).Addr + "/locks" }
	postgres := func(t *testing.T) string { return testenv.Postgres(t).URL("pglock") }
	for _, test := range []struct {
		name, title string
		from, to    func(*testing.T) string
	}{
		{"redis to etcd", sealsTitle, redis, etcd},
		{"etcd to redis", sealsTitle, etcd, redis},
		{"zookeeper to etcd", sealsTitle, zk, etcd},
		{"string locks to redis", sealsTitle, texts, redis},
		{"redis to postgres", gateTitle, redis, postgres},
		{"redis to zookeeper, and back", backTitle, redis, zk},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fleet{two: &two{t: t, from: test.from(t), to: test.to(t)}, gated: test.title == gateTitle,
				listed: []string{"a", "b", "c"}, all: []string{"a", "b", "c", "d", "e"}, programs: make([]*program, 3),
				inside: map[string]bool{}, last: map[string]uint64{}}
			f.tokens = !strings.HasPrefix(f.from, "redis-string:")
			f.fenced = f.tokens
			file := filepath.Join(t.TempDir(), "names.txt")
			if err := os.WriteFile(file, []byte(strings.Join(f.listed, "\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			lines := runbookLines(t, test.title)
			if test.title == backTitle {
				there := runbookLines(t, sealsTitle)
				end := slices.IndexFunc(there, func(s string) bool { return strings.HasPrefix(s, "# 7.") })
				lines = append(there[:end], lines...)
			}
			f.follow(lines, file)
		})
	}
}

// follow runs a runbook from the URL of the old backend to that of the new one.
func (f *fleet) follow(lines []string, file string) {
	f.restart(f.from)
	f.stranger = f.start(f.from, f.all)
	f.use(f.t.Context(), f.programs[0].client, "idle")
	before := f.token("idle")
	said := ""
	for _, text := range lines {
		said = f.line(text, said, file)
		if f.gated && strings.Contains(text, "finalize") {
			_, err := dsync.Open(f.t.Context(), f.phase("old"), &dsync.Options{TTL: runbookTTL})
			if !errors.Is(err, migrate.ErrFinalized) && !errors.As(err, new(*migrate.BehindError)) {
				f.t.Errorf("a program with the old configuration: got %v, want that it is refused", err)
			}
		}
		if f.t.Failed() {
			f.t.Fatalf("after the line %q", text)
		}
	}
	now := f.to
	if strings.HasPrefix(lines[len(lines)-1], "dsync migrate untie") {
		now = f.from
	}
	f.use(f.t.Context(), f.programs[0].client, "idle")
	if got := f.token("idle"); got <= before {
		f.t.Errorf("the name that nobody locked meanwhile: got token %d after %d", got, before)
	}
	for _, p := range f.programs {
		f.end(p)
	}
	d := drivertest.Open(f.t, now)
	for _, name := range f.all {
		l := drivertest.Acquire(f.t, d, drivertest.Request(name))
		if token, _ := driver.Tokens(l, 0); token == 0 {
			f.t.Errorf("%s: no token", name)
		}
		drivertest.Release(f.t, l)
	}
	if f.grants < 100 {
		f.t.Errorf("%d grants, want 100 or more", f.grants)
	}
	f.t.Logf("%s", fmt.Sprint(f.grants, " grants"))
}
