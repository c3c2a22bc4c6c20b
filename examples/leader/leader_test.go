//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/guard"
	"github.com/go-dsync/dsync/internal/testenv"
)

var screenshot = flag.String("screenshot", "", "file for a screenshot of a page")

func TestMain(m *testing.M) {
	testenv.RunProgram(main, nodeVariable)
	testenv.NoLeaks(m)
}

// TestLeader ends three leaders, on the embedded backend and on an etcd.
func TestLeader(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args func(t *testing.T) []string
		ways [3]string
	}{
		{"embedded", func(*testing.T) []string { return []string{"-ttl", "1s"} }, (*embedded)(nil).ways()},
		{"etcd", func(t *testing.T) []string { return []string{"-url", "etcd://" + testenv.Etcd(t).Addr + "/locks/"} }, (*processes)(nil).ways()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := testenv.Execute(t, test.args(t)...)
			if status != 0 || stderr != "" {
				t.Fatalf("got status %d, standard error %q, want 0 and nothing; standard output\n%s", status, stderr, stdout)
			}
			rest := stdout
			for _, way := range test.ways {
				line := regexp.MustCompile(`(?m)^(node \d) ` + way + `: (node \d) leads after \S+s, term \d+\n`).FindStringSubmatchIndex(rest)
				if line == nil {
					t.Fatalf("want a line with %q, in the order %q, in\n%s", way, test.ways, stdout)
				}
				rest = rest[line[1]:]
			}
			if !regexp.MustCompile(`^  node \d, back after \S+s, ended term \d+: .*(lock lost|stale)`).MatchString(rest) {
				t.Errorf("want the end of the suspended leader's term at the end of\n%s", stdout)
			}
		})
	}
}

// TestPage opens the page of a candidate in a browser, while the leader
// changes.
func TestPage(t *testing.T) {
	t.Parallel()
	storeURL, stop, err := serve(new(store))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	d := newDemo(&embedded{job{TTL: 10 * time.Second, Election: "planner", Store: storeURL}, memory.NewServer(nil)}, io.Discard)
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if err := d.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.await(t.Context(), func() bool { return d.leader != nil }); err != nil {
		t.Fatal(err)
	}
	first, second := d.leader, d.actors[0]
	if first == second {
		second = d.actors[1]
	}
	browser := testenv.Chromium(t, second.url)
	shows := func(leader *actor, term uint64) string {
		return fmt.Sprintf(`document.getElementById("leader").innerText === %q && document.getElementById("term").innerText === "%d"`, leader.url, term)
	}
	browser.Await(shows(first, d.term))
	before := d.term
	first.leaving = true
	first.terminate()
	if err := d.await(t.Context(), func() bool { return d.leader == second }); err != nil {
		t.Fatal(err)
	}
	browser.Await(shows(second, d.term))
	text := browser.Text()
	for _, want := range []string{
		"The page of " + second.url,
		fmt.Sprintf("term %d: %s", before, first.url),
		fmt.Sprintf("term %d: %s", d.term, second.url),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page shows\n%s\nwant %q in it", text, want)
		}
	}
	if d.term <= before {
		t.Errorf("term %d after %d", d.term, before)
	}
	if picture := browser.Screenshot(); !bytes.HasPrefix(picture, []byte("\x89PNG")) {
		t.Errorf("the screenshot of %d bytes is not a PNG", len(picture))
	} else if *screenshot != "" {
		if err := os.WriteFile(*screenshot, picture, 0o644); err != nil {
			t.Error(err)
		}
	}
}

// TestStoreRefusesALateLeader sends a plan of an old term.
func TestStoreRefusesALateLeader(t *testing.T) {
	url, stop, err := serve(new(store))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c := newStoreClient(url)
	for _, test := range []struct {
		term uint64
		want error
	}{{7, nil}, {7, nil}, {9, nil}, {7, guard.ErrStale}, {9, nil}} {
		if err := c.write(t.Context(), plan{Leader: "x", Term: test.term}); !errors.Is(err, test.want) {
			t.Errorf("term %d: got %v, want %v", test.term, err, test.want)
		}
	}
	if p, err := c.read(t.Context()); err != nil || p.Term != 9 {
		t.Errorf("the plan is %+v, %v; want the plan of term 9", p, err)
	}
}

// TestCanceledWritesLeaveReadsAlone ends terms at the moment when the store
// responds to the leader, while nodes follow the plan.
func TestCanceledWritesLeaveReadsAlone(t *testing.T) {
	t.Parallel()
	s := new(store)
	var endTerm atomic.Pointer[context.CancelFunc]
	url, stop, err := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.Header().Set("Content-Length", "0")
		}
		s.ServeHTTP(w, r)
		if r.Method == http.MethodPut {
			_ = http.NewResponseController(w).Flush()
			(*endTerm.Load())()
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c := newStoreClient(url)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	others.Go(func() { // ends when ctx ends
		for ctx.Err() == nil {
			term, end := context.WithCancel(ctx)
			endTerm.Store(&end)
			_ = c.write(term, plan{Term: 1}) // fails about half of the time
			end()
		}
	})
	for i := range 1000 {
		if _, err := c.read(t.Context()); err != nil {
			t.Fatalf("read %d: %v", i, err)
		}
	}
}

// TestTermsThatFallAreAnError lets a node report an old term.
func TestTermsThatFallAreAnError(t *testing.T) {
	d := newDemo(nil, io.Discard)
	a := &actor{name: "node 1"}
	for _, test := range []struct {
		term uint64
		ok   bool
	}{{5, true}, {6, true}, {6, false}, {5, false}} {
		if err := d.hear(a, event{Kind: elected, Term: test.term}); (err == nil) != test.ok {
			t.Errorf("term %d: %v", test.term, err)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, test := range []struct {
		args   string
		status int
		stderr string // a part of it
	}{
		{"-h", 0, "-patience"},
		{"-nonsense", 2, "-nonsense"},
		{"nonsense", 2, "arguments"},
		{"-etcd -url etcd://127.0.0.1:1", 2, "-etcd"},
		{"-url nonsense://", 1, "ended too early"},
		{"-patience 10ms", 1, context.DeadlineExceeded.Error()},
	} {
		status, _, stderr := testenv.Execute(t, strings.Fields(test.args)...)
		if status != test.status || !strings.Contains(stderr, test.stderr) {
			t.Errorf("%s: got status %d, standard error %q; want %d, and %q", test.args, status, stderr, test.status, test.stderr)
		}
	}
}
