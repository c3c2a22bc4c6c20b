package testenv

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// lend returns a server of a kind for one test. It prefers a spare server,
// which an earlier test has left, because a new server costs more. The server
// has no data, and no other test uses it. Only tests that [NoLeaks] runs have
// spares.
func lend[S spareable](tb testing.TB, kind string, start func(tb testing.TB) S) S {
	tb.Helper()
	l := spares.take(kind)
	if l == nil {
		l = &loan{kind: kind, home: new(home)}
	}
	l.home.TB = tb
	tb.Cleanup(func() { spares.giveBack(l) })
	if l.server == nil {
		l.server = start(l.home)
	}
	return l.server.(S)
}

// spareable is a server that can be used by one test after another.
type spareable interface {
	base() *Server

	// clean removes everything that a test has left on the server. An error
	// means that the next test would find a difference from a new server other
	// than higher counters.
	clean(ctx context.Context) error
}

func (s *Server) base() *Server { return s }

// untouched reports whether the server is running and not frozen.
func (s *Server) untouched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && !s.proc.ended() && !s.proc.frozen
}

// loan is a server that tests use one after another.
type loan struct {
	kind   string
	server spareable // nil until it is started
	home   *home
}

// home is the testing.TB of a server that outlives the test that started it.
type home struct {
	testing.TB // the test that uses the server
	cleanups   []func()
}

func (h *home) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

func (h *home) TempDir() string {
	h.Helper()
	dir, err := os.MkdirTemp("", "dsync-spare-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// end stops the server and removes its files.
func (h *home) end() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
}

// spares are the servers of this process that no test uses at the moment.
var spares spareServers

type spareServers struct {
	mu   sync.Mutex
	on   bool
	idle []*loan // the most recently used one is the last
}

// maxSpares bounds the memory of idle servers.
const maxSpares = 6

// cleanGuard bounds the time for cleaning a server. Usually it takes
// milliseconds, and a new server takes about a second.
const cleanGuard = 3 * time.Second

func (s *spareServers) take(kind string) *loan {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range slices.Backward(s.idle) {
		if l.kind == kind {
			s.idle = slices.Delete(s.idle, i, i+1)
			return l
		}
	}
	return nil
}

// giveBack makes the server of a finished test a spare one, or ends it.
func (s *spareServers) giveBack(l *loan) {
	s.mu.Lock()
	on := s.on
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), cleanGuard)
	defer cancel()
	if !on || l.server == nil || l.home.Failed() || !l.server.base().untouched() || l.server.clean(ctx) != nil {
		l.home.end()
		return
	}
	s.mu.Lock()
	s.idle = append(s.idle, l)
	var last *loan
	if len(s.idle) > maxSpares {
		last = s.idle[0]
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	s.mu.Unlock()
	if last != nil {
		last.home.end()
	}
}

// use runs tests that leave their servers as spares for later tests.
func (s *spareServers) use(run func() int) int {
	s.mu.Lock()
	s.on = true
	s.mu.Unlock()
	code := run()
	s.mu.Lock()
	idle := s.idle
	s.on, s.idle = false, nil
	s.mu.Unlock()
	for _, l := range idle {
		l.home.end()
	}
	return code
}
