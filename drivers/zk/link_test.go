package zk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/lifecycle"
)

// frame returns a packet of the protocol.
func frame(body ...any) []byte {
	var b []byte
	for _, part := range body {
		b, _ = binary.Append(b, binary.BigEndian, part)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// welcome is the answer to the request for a session.
func welcome() []byte { return frame(int32(0), int32(30_000), int64(42), int32(16), make([]byte, 16)) }

// TestLinkKeepsTheTransactions has a link read answers in pieces of all sizes.
// The library gets them without the transaction, and its request to connect
// again has the last transaction that was answered.
func TestLinkKeepsTheTransactions(t *testing.T) {
	hello := welcome()
	answer := func(xid int32, zxid int64) []byte { return frame(xid, zxid, int32(0), []byte("whatever")) }
	answers := [][]byte{answer(1, 0x100000007), answer(xidPing, 0x100000009), answer(2, 0x100000008)}
	want := bytes.Join([][]byte{hello, answer(1, 0), answer(xidPing, 0), answer(2, 0)}, nil)
	for piece := 1; piece <= len(want); piece++ {
		s := newSession(&Driver{life: lifecycle.New(), epoch: time.Now()}, time.Minute)
		l := &link{Conn: new(recorder), session: s}
		for _, request := range [][]byte{frame(int32(0), int64(0)), frame(int32(1), int32(3)), frame(int32(2), int32(3))} {
			l.note(request, s.driver.now())
		}
		got, err := feed(l, append(bytes.Clone(hello), bytes.Join(answers, nil)...), piece)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("answers in pieces of %d bytes: got %x, %v, want %x", piece, got, err, want)
		}
		if got := s.zxid.Load(); got != 0x100000008 {
			t.Fatalf("last transaction: got %x, want the transaction of the last answer", got)
		}
		again := &link{Conn: new(recorder), session: s}
		for _, test := range []struct {
			what string
			b    []byte
			at   int
		}{
			{"request for the session", frame(int32(0), int64(0), int32(30_000)), 8},
			{"request for watches", frame(int32(3), int32(opWatch), int64(0), int32(0)), 12},
		} {
			sent, _ := again.note(test.b, s.driver.now())
			if got := binary.BigEndian.Uint64(sent[test.at:]); got != 0x100000008 {
				t.Errorf("%s: got transaction %x, want the last answered transaction", test.what, got)
			}
			if binary.BigEndian.Uint64(test.b[test.at:]) != 0 {
				t.Errorf("%s: the library's buffer was changed", test.what)
			}
		}
		s.cut()
	}
}

// TestLinkBelievesNothingOfAnAnswerThatMakesNoSense checks that an answer that
// the library must not decode proves neither that the server is there nor what
// the leader knows.
func TestLinkBelievesNothingOfAnAnswerThatMakesNoSense(t *testing.T) {
	hello := welcome()
	for _, test := range []struct {
		what   string
		op     int32
		answer []byte
	}{
		{"a transaction without an end", opMulti, frame(int32(1), int64(7), int32(0), int32(opDelete), byte(0), int32(0))},
		{"an answer to another request", opMulti, frame(int32(2), int64(7), int32(0))},
		{"data of two gigabytes", opGetData, frame(int32(1), int64(7), int32(0), int32(1<<31-1))},
	} {
		s := newSession(&Driver{life: lifecycle.New(), epoch: time.Now()}, time.Minute)
		l := &link{Conn: new(recorder), session: s}
		l.note(frame(int32(0), int64(0)), s.driver.now())
		l.note(frame(int32(1), test.op), s.driver.now())
		if _, err := feed(l, hello, len(hello)); err != nil {
			t.Fatal(err)
		}
		heard, zxid, expires := s.heard.Load(), s.zxid.Load(), s.End.At()
		if _, err := feed(l, test.answer, len(test.answer)); err == nil {
			t.Errorf("%s: got no error", test.what)
		}
		if s.heard.Load() != heard || s.zxid.Load() != zxid || s.End.At() != expires {
			t.Errorf("%s: the answer was believed", test.what)
		}
		s.cut()
	}
}

// TestLinkRefusesASessionThatLastsNoTime checks a timeout of zero: the library
// makes a ticker of the timeout, and a ticker of zero panics.
func TestLinkRefusesASessionThatLastsNoTime(t *testing.T) {
	for _, timeout := range []int32{0, -1} {
		s := newSession(&Driver{life: lifecycle.New(), epoch: time.Now()}, time.Minute)
		l := &link{Conn: new(recorder), session: s}
		write(t, l, frame(int32(0), int64(0)))
		if err := l.received(frame(int32(0), timeout, int64(42), int32(16), make([]byte, 16))); !errors.Is(err, errAnswer) {
			t.Errorf("a session of %d ms: got %v, want errAnswer", timeout, err)
		}
		s.cut()
	}
}

// FuzzLink lets a server send anything, in two pieces. The library gets all of
// it up to a frame that makes no sense, changed at most where it expects a
// transaction, and can decode it.
func FuzzLink(f *testing.F) {
	f.Add(welcome(), frame(int32(1), int64(7), int32(0)))
	f.Add(welcome(), frame(int32(firstDirect+1), int64(7), int32(0), []byte("x")))
	f.Add(welcome(), frame(int32(1), int64(7), int32(0), int32(1), int32(1), []byte("x"), make([]byte, statSize)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 40))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		s := newSession(&Driver{life: lifecycle.New(), epoch: time.Now()}, time.Minute)
		defer s.cut()
		l := &link{Conn: new(recorder), session: s, buffers: true}
		l.note(frame(int32(0), int64(0)), 0)
		l.note(frame(int32(1), int32(opChildren)), 0)
		told := 0
		direct := l.direct(opChildren, nil, func([]byte, error) { told++ })
		sent := slices.Concat(one, two)
		got, _ := feed(l, bytes.Clone(sent), max(1, len(one)))
		if len(got) > len(sent) {
			t.Fatalf("got %d bytes of %d", len(got), len(sent))
		}
		for i, b := range got {
			if b != sent[i] && b != 0 {
				t.Fatalf("byte %d was changed from %x to %x", i, sent[i], b)
			}
		}
		if l.Close(); !direct || told != 1 {
			t.Fatalf("a request past the library (%t) was notified of its outcome %d times, want once", direct, told)
		}
	})
}
