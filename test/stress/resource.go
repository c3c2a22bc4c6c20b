package stress

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// resource is the object that the locks protect. For each name it keeps the
// largest token of a write. It refuses writes and reads with a smaller token
// and records each access. It does not keep the token of a read, because of two
// concurrent readers neither is late. Workers connect to the resource through a
// socket.
type resource struct {
	path    string
	history *history.History
	tally   tally // of permits
	wg      sync.WaitGroup

	mu      sync.Mutex
	highest map[string]uint64
	writer  map[string]string // the last writer of each name
	conns   map[net.Conn]bool
	closed  bool
	writes  int
}

func startResource(tb testing.TB, h *history.History) *resource {
	tb.Helper()
	r := &resource{path: filepath.Join(tb.TempDir(), "s"), history: h, highest: map[string]uint64{}, writer: map[string]string{},
		conns: map[net.Conn]bool{}, tally: tally{began: time.Now()}}
	l, err := net.Listen("unix", r.path)
	if err != nil {
		tb.Fatal(err)
	}
	r.wg.Go(func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(c) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		r.closed = true
		for c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

// serve returns when the connection is closed.
func (r *resource) serve(c net.Conn) {
	defer c.Close()
	r.mu.Lock()
	r.conns[c] = true
	closed := r.closed
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, c)
	}()
	var held *stay // by the user at the other end
	for in := bufio.NewScanner(c); !closed && in.Scan(); {
		var answer any
		var err error
		switch kind, rest, _ := strings.Cut(in.Text(), " "); kind {
		case "now":
			answer = int64(r.tally.now())
		case "holds":
			var n int
			var until int64
			var who string
			_, err = fmt.Sscan(rest, &n, &until, &who)
			held = r.tally.told(held, n, time.Duration(until), who)
			answer = n
		case "access":
			var name, who string
			var token uint64
			var mode driver.Mode
			_, err = fmt.Sscan(rest, &token, &mode, &name, &who)
			answer = r.access(name, token, mode, who)
		}
		if err != nil {
			return
		}
		if _, err := fmt.Fprintln(c, answer); err != nil {
			return
		}
	}
}

// access reports whether the write was accepted, or the read if the mode is
// Read.
func (r *resource) access(name string, token uint64, mode driver.Mode, who string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	ok := token >= r.highest[name]
	if mode == driver.Read {
		if token != 0 {
			r.history.Saw(name, token, ok)
		}
		return ok
	}
	if ok {
		r.highest[name], r.writer[name] = token, who
	}
	if token != 0 {
		r.history.Wrote(name, token, ok)
	}
	return ok
}

// holder returns the last writer of a name.
func (r *resource) holder(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writer[name]
}

// written returns the number of writes and reads, accepted or not, plus the
// number of stays with permits. The sum is about the number of operations on
// locks.
func (r *resource) written() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes + r.tally.count()
}

// resourceClient is one user's connection to the resource.
type resourceClient struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialResource(path string) *resourceClient {
	c, err := net.Dial("unix", path)
	if err != nil {
		panic(err) // the resource outlives the workers
	}
	return &resourceClient{c, bufio.NewReader(c)}
}

func (c *resourceClient) access(name string, token uint64, mode driver.Mode, who string) {
	c.ask("access", token, int(mode), name, who)
}

// holds reports that the user has n permits until a time on the clock of now.
func (c *resourceClient) holds(n int, until time.Duration, who string) {
	c.ask("holds", n, int64(until), who)
}

// left reports that the user no longer has permits.
func (c *resourceClient) left() { c.holds(0, 0, "nobody") }

// now returns a time on the clock of the resource that is not later than the
// return of now.
func (c *resourceClient) now() time.Duration {
	var now int64
	if _, err := fmt.Sscan(c.ask("now"), &now); err != nil {
		panic(err)
	}
	return time.Duration(now)
}

// ask returns the resource's response.
func (c *resourceClient) ask(words ...any) string {
	if _, err := fmt.Fprintln(c.conn, words...); err != nil {
		panic(err)
	}
	answer, err := c.in.ReadString('\n')
	if err != nil {
		panic(err)
	}
	return answer
}

func (c *resourceClient) close() { c.conn.Close() }
