package zk

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
)

// TestAnswersThatMakeNoSense has a server, or another program at its address,
// claim to send more than it does, once or with every answer. Calls end without
// a panic, and allocate no memory for missing data.
func TestAnswersThatMakeNoSense(t *testing.T) {
	welcome := welcome()
	answer := func(body ...any) func(xid int32) []byte {
		return func(xid int32) []byte { return frame(append([]any{xid, int64(1), int32(0)}, body...)...) }
	}
	for _, test := range []struct {
		what    string
		welcome []byte
		op      int32 // which receives the answer
		answer  func(xid int32) []byte
	}{
		{"a page instead of a session", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 0, nil},
		{"a password of two gigabytes", frame(int32(0), int32(30_000), int64(42), int32(1<<31-1)), 0, nil},
		{"a welcome without a password", frame(int32(0), int32(30_000), int64(42)), 0, nil},
		{"a frame of four gigabytes", welcome, opGetData, func(int32) []byte { return binary.BigEndian.AppendUint32(nil, 1<<32-1) }},
		{"a frame without a header", welcome, opGetData, func(xid int32) []byte { return frame(xid) }},
		{"an empty answer", welcome, opGetData, answer()},
		{"data of two gigabytes", welcome, opGetData, answer(int32(1<<31 - 1))},
		{"two billion names", welcome, opChildren, answer(int32(1<<31-1), make([]byte, 100))},
		{"four billion names", welcome, opChildren, answer(int32(-1), make([]byte, 100))},
		{"names in the place of data", welcome, opGetData, func(xid int32) []byte { return answer(int32(1<<31 - 1))(xid + 1) }},
		{"a transaction without an end", welcome, opMulti, answer(int32(opDelete), byte(0), int32(0))},
		{"a transaction that ends early", welcome, opMulti, answer(int32(opDelete))},
		{"a transaction that ends in a path", welcome, opMulti, answer(int32(opCreate), byte(0), int32(0), int32(1<<31-1))},
	} {
		t.Run(test.what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var times atomic.Int32
			told := func() { // the first time is for a call, and the second one for another try of New
				if times.Add(1) == 2 {
					cancel()
				}
			}
			addr := nonsense(t, func() []byte {
				if test.answer == nil {
					told()
				}
				return test.welcome
			}, func(xid, op int32) []byte {
				switch {
				case op == test.op && test.answer != nil:
					told()
					return test.answer(xid)
				case op == opGetData:
					return answer(int32(0), make([]byte, statSize))(xid)
				}
				return answer()(xid)
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			callAll(ctx, t, addr)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 200<<20 {
				t.Errorf("memory for missing data: got %d MB", got>>20)
			}
			if times.Load() == 0 {
				t.Error("the server received no request")
			}
		})
	}
}

// callAll makes one request of each kind whose answers have lengths.
func callAll(ctx context.Context, t *testing.T, addr string) {
	d, err := New(ctx, []string{addr}, &Options{TTL: 30 * time.Second})
	if err != nil {
		t.Logf("New: %v", err)
		return
	}
	defer func() { // without waiting for the end of a session that such a server would not end
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		d.Close(ctx)
	}()
	s, err := d.board(ctx, d.options.TTL, 0)
	if err != nil {
		t.Logf("session: %v", err)
		return
	}
	defer s.Leave(0)
	c := caller{session: s, ctx: ctx}
	for _, request := range []func(*gozk.Conn) error{
		func(c *gozk.Conn) error { _, _, err := c.Get("/a"); return err },
		func(c *gozk.Conn) error { _, _, err := c.Children("/a"); return err },
		func(c *gozk.Conn) error { _, err := c.Multi(&gozk.DeleteRequest{Path: "/a"}); return err },
	} {
		_, err := receive(c, send(s, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, request(c) }))
		t.Log(err)
	}
}

// nonsense runs a server that answers the request for a session, and then each
// request, with the given functions. It returns its address.
func nonsense(t *testing.T, welcome func() []byte, answer func(xid, op int32) []byte) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c, welcome, answer)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	return l.Addr().String()
}

// serve serves a connection until the client ends the session or the
// connection, or has not written for a second.
func serve(c net.Conn, welcome func() []byte, answer func(xid, op int32) []byte) {
	defer c.Close()
	for first := true; ; first = false {
		c.SetDeadline(time.Now().Add(time.Second))
		size := make([]byte, 4)
		if _, err := io.ReadFull(c, size); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(size))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		var reply []byte
		if first {
			reply = welcome()
		} else {
			xid, op := int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[4:]))
			if op == opClose { // a server answers and closes the connection
				c.Write(frame(xid, int64(1), int32(0)))
				return
			}
			reply = answer(xid, op)
		}
		if _, err := c.Write(reply); err != nil {
			return
		}
	}
}
