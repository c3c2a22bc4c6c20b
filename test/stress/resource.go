package stress

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
)

// resource is what the locks protect: for each name the largest token that it was written with. It refuses those who write or read with
// smaller ones, and records all of them. What was read with a token is not kept: of two who read at the same time neither is late. Workers
// reach it by a socket.
type resource struct {
	path    string
	history *history.History
	wg      sync.WaitGroup

	mu      sync.Mutex
	highest map[string]uint64
	writer  map[string]string // who wrote last
	conns   map[net.Conn]bool
	closed  bool
	writes  int
}

func startResource(tb testing.TB, h *history.History) *resource {
	tb.Helper()
	r := &resource{path: filepath.Join(tb.TempDir(), "s"), history: h, highest: map[string]uint64{}, writer: map[string]string{},
		conns: map[net.Conn]bool{}}
	l, err := net.Listen("unix", r.path)
	if err != nil {
		tb.Fatal(err)
	}
	r.wg.Go(func() { // ends with the listener
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

// serve ends with the connection.
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
	for in := bufio.NewScanner(c); !closed && in.Scan(); {
		var name, who string
		var token uint64
		var mode driver.Mode
		if _, err := fmt.Sscan(in.Text(), &token, &mode, &name, &who); err != nil {
			return
		}
		if _, err := fmt.Fprintln(c, r.access(name, token, mode, who)); err != nil {
			return
		}
	}
}

// access reports whether the write, or in the mode Read the read, was accepted.
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

// holder returns who wrote to name last.
func (r *resource) holder(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writer[name]
}

// written is how often somebody wrote or read, whether or not it was accepted: about once for each operation on a lock.
func (r *resource) written() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes
}

// resourceClient is one user's way to the resource.
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

// access returns when the resource has answered.
func (c *resourceClient) access(name string, token uint64, mode driver.Mode, who string) {
	if _, err := fmt.Fprintln(c.conn, token, int(mode), name, who); err != nil {
		panic(err)
	}
	if _, err := c.in.ReadString('\n'); err != nil {
		panic(err)
	}
}

func (c *resourceClient) close() { c.conn.Close() }
