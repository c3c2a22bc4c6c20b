package zk_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// four sends a four-letter command to a server.
func four(tb testing.TB, s *testenv.ZooKeeperServer, command string) string {
	tb.Helper()
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(command)); err != nil {
		tb.Fatal(err)
	}
	text, err := io.ReadAll(c)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// pathsAt returns the number of bytes that the paths of each session's
// ephemeral nodes occupy in the transaction that ends the session, as the
// server counts them.
func pathsAt(tb testing.TB, s *testenv.ZooKeeperServer) map[string]int {
	tb.Helper()
	text := four(tb, s, "dump")
	_, nodes, ok := strings.Cut(text, "phemerals")
	if !ok {
		tb.Fatalf("the server answered %q", text)
	}
	sizes, session := make(map[string]int), ""
	for line := range strings.Lines(nodes) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "0x") {
			session = line
		} else if node, ok := strings.CutPrefix(line, "\t"); ok && strings.HasPrefix(node, "/") {
			sizes[session] += len(node) + 4
		}
	}
	return sizes
}

// TestPathsOfASessionAreBounded has nodes of all kinds. The transaction that
// ends a session lists their paths, and servers cannot read a transaction that
// is too long.
func TestPathsOfASessionAreBounded(t *testing.T) {
	const most = 8 << 10
	s := testenv.ZooKeeper(t)
	other := openURL(t, "zk://%s", s.Addr)
	acquire(t, other, request("of the other"))
	theirs := pathsAt(t, s) // of one session
	long := strings.Repeat("x", 200)
	for kind, many := range map[string]func(d *zk.Driver, i int){
		"exclusive": func(d *zk.Driver, i int) { acquire(t, d, request(fmt.Sprint(long, i))) },
		"fixed":     func(d *zk.Driver, i int) { acquire(t, d, fixed(request(fmt.Sprint(long, i)), hangGuard)) },
		"read": func(d *zk.Driver, i int) {
			r := request(long)
			r.Mode = driver.Read
			acquire(t, d, r)
		},
		"permits": func(d *zk.Driver, i int) {
			r := request(long + "permits")
			r.Mode, r.Permits, r.Limit = driver.Permit, 3, 1000
			acquire(t, d, r)
		},
		"waiters": func(d *zk.Driver, i int) {
			name := fmt.Sprint(long, "w", i)
			acquire(t, other, request(name))
			wait(t, d, request(name))
		},
	} {
		t.Run(kind, func(t *testing.T) {
			d, err := zk.New(guard(t), []string{s.Addr}, nil)
			if err != nil {
				t.Fatal(err)
			}
			d.MaxPaths(most)
			for i := range 40 {
				many(d, i)
			}
			sum, full := 0, 0
			for session, size := range pathsAt(t, s) {
				if theirs[session] > 0 {
					continue
				}
				if sum += size; size > most {
					t.Errorf("session %s has paths of %d bytes, want at most %d", session, size, most)
				}
				if size > most/2 {
					full++
				}
			}
			if sum < 40*200 || full < sum/most/2 {
				t.Errorf("got %d bytes, and %d full sessions", sum, full)
			}
			if err := d.Close(guard(t)); err != nil {
				t.Error(err)
			}
			if left := pathsAt(t, s); len(left) != 1 {
				t.Errorf("after Close: got the sessions %v, want %v", left, theirs)
			}
		})
	}
}
