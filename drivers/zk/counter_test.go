package zk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestLastSequenceNumber has the server at the end of its count of the children
// of a name. It gives each further child the last number, so the order of
// contenders is lost. The name is refused, and the error names the node that
// must be removed.
func TestLastSequenceNumber(t *testing.T) {
	dir := t.TempDir()
	s := testenv.ZooKeeper(t, "dataDir="+dir)
	maker := userClient(t, s.Addr)
	for _, node := range []string{"/x", "/p", "/p/leases", "/p/locks"} {
		if _, err := maker.Create(node, nil, 0, gozk.WorldACL(gozk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	s.Restart() // the server writes all nodes to a snapshot when it starts
	s.Kill()
	setCounters(t, dir, math.MaxInt32-1, "/x", "/p/leases")
	s.Start()

	c := userClient(t, s.Addr)
	d := openURL(t, "zk://%s", s.Addr)
	holder := acquire(t, d, request("x")) // the last number but one
	for range 3 {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
			r := request("x")
			r.Mode = mode
			_, err := d.Acquire(guard(t), r)
			wantText(t, "a contender with the last number", err, "sequence number", "/x")
			r.NoWait = true
			_, err = d.Acquire(guard(t), r)
			wantErr(t, "a try while the name is held", err, driver.ErrLocked)
		}
	}
	if nodes := contenders(t, c, "/x"); len(nodes) != 1 {
		t.Errorf("contenders: got %q, want the holder", nodes)
	}
	release(t, holder)
	r := request("p")
	r.Mode, r.Permits, r.Limit = driver.Permit, 4, 10
	_, err := d.Acquire(guard(t), r)
	wantText(t, "permits beyond the last number", err, "sequence number", "/p/leases")
	if nodes := leases(t, c, "/p"); len(nodes) != 0 {
		t.Errorf("leases: got %q, want none", nodes)
	}
	if err := c.Delete("/x", -1); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, d, request("x")))
}

// setCounters sets the number of children that nodes have had, in the newest
// snapshot of a stopped server.
func setCounters(tb testing.TB, dir string, n int, nodes ...string) {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "version-2", "snapshot.*"))
	if err != nil || len(files) == 0 {
		tb.Fatal("no snapshot", err)
	}
	file := slices.MaxFunc(files, func(a, b string) int {
		x, errA := os.Stat(a)
		y, errB := os.Stat(b)
		if err := errors.Join(errA, errB); err != nil {
			tb.Fatal(err)
		}
		return x.ModTime().Compare(y.ModTime())
	})
	before, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	after := slices.Clone(before)
	for _, node := range nodes {
		at := bytes.Index(before, append(binary.BigEndian.AppendUint32(nil, uint32(len(node))), node...))
		if at < 0 {
			tb.Fatalf("no node %s in the snapshot", node)
		}
		at += 4 + len(node)
		if size := int32(binary.BigEndian.Uint32(before[at:])); size > 0 {
			at += int(size)
		}
		at += 4 + 8 + 4*8 + 4 // data, ACL, two transactions and times, version
		binary.BigEndian.PutUint32(after[at:], uint32(n))
	}
	// The snapshot ends with a checksum of everything before it and a slash as
	// a text. Newer versions append more.
	was, is := adler32.New(), adler32.New()
	for i := range len(before) - 12 {
		if binary.BigEndian.Uint64(before[i:]) == uint64(was.Sum32()) && bytes.Equal(before[i+8:i+13], []byte{0, 0, 0, 1, '/'}) {
			binary.BigEndian.PutUint64(after[i:], uint64(is.Sum32()))
		}
		was.Write(before[i : i+1])
		is.Write(after[i : i+1])
	}
	if err := os.WriteFile(file, after, 0o600); err != nil {
		tb.Fatal(err)
	}
}
