package zk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// recorder is a connection that records writes, and has data to read.
type recorder struct {
	net.Conn
	written  bytes.Buffer
	incoming io.Reader
}

func (r *recorder) Read(b []byte) (int, error)  { return r.incoming.Read(b) }
func (r *recorder) Write(b []byte) (int, error) { return r.written.Write(b) }
func (r *recorder) Close() error                { return nil }

// pieces reads a limited number of bytes at a time.
type pieces struct {
	rest []byte
	most int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.most, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}

// openLink returns a link on which the server has granted the session and
// answered the library once.
func openLink(t testing.TB) (*session, *link, *recorder) {
	s := newSession(&Driver{life: lifecycle.New(), epoch: time.Now()}, time.Minute)
	t.Cleanup(s.cut)
	r := new(recorder)
	l := &link{Conn: r, session: s, buffers: true}
	write(t, l, frame(int32(0), int64(0)))
	feed(l, welcome(), 64)
	write(t, l, frame(int32(1), int32(3)))
	if s.link.Load() != nil {
		t.Fatal("requests bypass the library before the server has answered it")
	}
	feed(l, frame(int32(1), int64(7), int32(0)), 64)
	r.written.Reset()
	return s, l, r
}

func write(t testing.TB, l *link, b []byte) {
	if _, err := l.Write(b); err != nil {
		t.Fatal(err)
	}
}

// feed makes the server send bytes, in pieces, and returns the bytes that the
// library reads.
func feed(l *link, b []byte, piece int) ([]byte, error) {
	l.Conn.(*recorder).incoming = &pieces{b, piece}
	return io.ReadAll(l)
}

// listed is the outcome of one request for a list.
type listed struct {
	listing listing
	err     error
	calls   int
}

func (l *listed) handle(list listing, err error) { l.listing, l.err, l.calls = list, err, l.calls+1 }

// TestDirectRequests sends requests that bypass the library together with one
// of the library's own requests. The answers come in pieces of all sizes.
func TestDirectRequests(t *testing.T) {
	stat := gozk.Stat{Czxid: 1, Mzxid: 2, Ctime: 3, Mtime: 4, Version: 5, Cversion: 6, Aversion: 7, EphemeralOwner: 8, DataLength: 9, NumChildren: 2, Pzxid: 10}
	const one, two, three = firstDirect + 1, firstDirect + 2, firstDirect + 3
	answers := bytes.Join([][]byte{
		frame(int32(one), int64(0x100000001), int32(0)),
		frame(int32(2), int64(0x100000001), int32(0), []byte("of the library")),
		frame(int32(two), int64(0x100000002), int32(0), int32(2), int32(1), []byte("x"), int32(0), stat),
		frame(int32(three), int64(0x100000003), int32(-101)),
	}, nil)
	wantSent := bytes.Join([][]byte{
		frame(int32(one), int32(opDelete), int32(4), []byte("/a/b"), int32(-1)),
		frame(int32(2), int32(3)),
		frame(int32(two), int32(opChildren), int32(2), []byte("/a"), false),
		frame(int32(three), int32(opDelete), int32(2), []byte("/c"), int32(-1)),
	}, nil)
	for piece := 1; piece <= len(answers); piece++ {
		s, l, r := openLink(t)
		var list listed
		removed := s.removeNow("/a/b")
		write(t, l, frame(int32(2), int32(3)))
		if !s.listNow("/a", list.handle) {
			t.Fatal("the list was not requested")
		}
		gone := s.removeNow("/c")
		if got := r.written.Bytes(); !bytes.Equal(got, wantSent) {
			t.Fatalf("sent: got %x, want %x", got, wantSent)
		}
		feed(l, answers, piece)
		if got := <-removed; got.err != nil {
			t.Errorf("a removed node: got error %v", got.err)
		}
		if got := <-gone; got.err != gozk.ErrNoNode {
			t.Errorf("a node that is not there: got error %v, want %v", got.err, gozk.ErrNoNode)
		}
		if want := (listing{[]string{"x", ""}, stat}); list.calls != 1 || list.err != nil || !reflect.DeepEqual(list.listing, want) {
			t.Errorf("in pieces of %d bytes: got %+v, want one call with %+v", piece, list, want)
		}
		if got := s.zxid.Load(); got != 0x100000003 {
			t.Errorf("last transaction: got %x, want the transaction of the last answer", got)
		}
		if l.unanswered != 0 || len(l.sent) != 0 {
			t.Errorf("left: got %d bytes of %d requests, want none", l.unanswered, len(l.sent))
		}
	}
}

// TestRequestsThatHaveToGoThroughTheLibrary has requests that the connection
// might not accept immediately, or that must not be sent.
func TestRequestsThatHaveToGoThroughTheLibrary(t *testing.T) {
	for what, spoil := range map[string]func(s *session, l *link){
		"too much is unanswered":         func(_ *session, l *link) { write(t, l, frame(int32(2), int32(1), make([]byte, maxUnanswered))) },
		"a request is being written":     func(_ *session, l *link) { l.writing.Lock() },
		"the library's numbers are high": func(_ *session, l *link) { write(t, l, frame(int32(maxLibrary), int32(3))) },
		"the session is being ended":     func(_ *session, l *link) { write(t, l, frame(int32(2), int32(opClose))) },
		"the time of the session is up":  func(s *session, _ *link) { s.End.Passed(s.End.At()) },
		"the connection is closed":       func(_ *session, l *link) { l.Close() },
		"another connection takes over":  func(s *session, l *link) { s.forget(l) },
		"a direct request is too large":  nil,
	} {
		s, l, r := openLink(t)
		path := "/a"
		if spoil != nil {
			spoil(s, l)
		} else {
			path += string(make([]byte, maxUnanswered))
		}
		r.written.Reset()
		if s.removeNow(path) != nil || r.written.Len() > 0 {
			t.Errorf("%s: a request was sent past the library", what)
		}
	}
	s := newSession(&Driver{life: lifecycle.New(), epoch: time.Now()}, time.Minute)
	defer s.cut()
	l := &link{Conn: new(recorder), session: s} // it is unknown whether it accepts writes immediately
	write(t, l, frame(int32(0), int64(0)))
	feed(l, welcome(), 64)
	write(t, l, frame(int32(1), int32(3)))
	feed(l, frame(int32(1), int64(7), int32(0)), 64)
	if s.removeNow("/a") != nil {
		t.Error("a connection that may block: a request was sent past the library")
	}
}

// TestDirectRequestsWithoutAnAnswer checks that their handlers are called once,
// whether the server skips them or the connection ends, even within an answer.
func TestDirectRequestsWithoutAnAnswer(t *testing.T) {
	s, l, _ := openLink(t)
	var skipped, answered, partial, open listed
	for _, list := range []*listed{&skipped, &answered, &partial, &open} {
		if !s.listNow("/a", list.handle) {
			t.Fatal("the list was not requested")
		}
	}
	answer := func(request int32) []byte {
		return frame(firstDirect+request, int64(8), int32(0), int32(0), make([]byte, statSize))
	}
	feed(l, append(answer(2), answer(3)[:50]...), 64)
	if !errors.Is(skipped.err, errUnanswered) || skipped.calls != 1 || answered.err != nil || answered.calls != 1 || partial.calls+open.calls > 0 {
		t.Errorf("after an answer to the second request: got %+v, %+v, %+v and %+v, want the first two to be notified", skipped, answered, partial, open)
	}
	l.Close()
	l.Close()
	for _, list := range []listed{partial, open} {
		if list.err != gozk.ErrConnectionClosed || list.calls != 1 {
			t.Errorf("after the end of the connection: got %+v, want one call with %v", list, gozk.ErrConnectionClosed)
		}
	}
	if skipped.calls != 1 {
		t.Errorf("the skipped request was notified %d times, want once", skipped.calls)
	}
}

func TestErrorsOfDirectRequests(t *testing.T) {
	for code, want := range map[int32]error{0: nil, -101: gozk.ErrNoNode, -102: gozk.ErrNoAuth, -112: gozk.ErrSessionExpired, -12: gozk.ErrSessionExpired, -118: gozk.ErrSessionMoved} {
		if got := errOf(code); got != want {
			t.Errorf("%d: got %v, want %v", code, got, want)
		}
	}
	if err := errOf(-99); err == nil || isAnswer(err) || !isServerError(err) {
		t.Errorf("an unknown error: got %v, want an error that leaves the outcome open", err)
	}
}

// TestUnknownSessionIsTheEndOfTheSession has an error of the server that the
// library has no name for. A create gets it if its session ends in the
// meantime.
func TestUnknownSessionIsTheEndOfTheSession(t *testing.T) {
	for err, want := range map[error]bool{
		errors.New("unknown error: -12"): false,
		gozk.ErrSessionExpired:           false,
		gozk.ErrConnectionClosed:         false,
		errors.New("unknown error: -1"):  true,
		gozk.ErrAPIError:                 true,
		gozk.ErrNodeExists:               true,
	} {
		if got := isServerError(err); got != want {
			t.Errorf("%v: an error of the server's own: got %t, want %t", err, got, want)
		}
	}
}

// TestErrorsOfServers checks that each error of ZooKeeper 3.5 to 3.9 has a name
// and a kind, with and without the library.
func TestErrorsOfServers(t *testing.T) {
	for code, want := range map[int32]error{
		-1: driver.ErrUnknown, -2: driver.ErrUnknown, -3: driver.ErrUnknown, -4: driver.ErrUnknown, -5: errors.ErrUnsupported, -6: errors.ErrUnsupported,
		-7: driver.ErrUnknown, -13: driver.ErrUnavailable, -14: driver.ErrUnavailable, -113: errors.ErrUnsupported, -119: driver.ErrUnavailable,
		-120: errors.ErrUnsupported, -121: errors.ErrUnsupported, -122: driver.ErrUnknown, -124: fs.ErrPermission, -125: driver.ErrUnavailable,
		-127: driver.ErrUnavailable, -99: driver.ErrUnknown,
	} {
		for _, err := range []error{named(fmt.Errorf("unknown error: %d", code)), errOf(code)} {
			text := fmt.Sprint(err)
			if !errors.Is(err, want) || !isServerError(err) || isAnswer(err) != (want != driver.ErrUnknown) {
				t.Errorf("%d: got %v, want an error of the server that matches %v, and refuses the request unless that is unknown", code, err, want)
			}
			if !strings.Contains(text, fmt.Sprint(code)) || strings.Contains(text, "unknown error") != (code == -99) {
				t.Errorf("%d: the text is %q, want the name and the code", code, text)
			}
		}
	}
}

// FuzzListing parses arbitrary answers to a listing.
func FuzzListing(f *testing.F) {
	f.Add(frame(int32(1), []byte("x"), make([]byte, statSize)))
	f.Add(frame(make([]byte, statSize)))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := readListing(b)
		if err != nil {
			if !errors.Is(err, errAnswer) {
				t.Errorf("got error %v, want %v", err, errAnswer)
			}
			return
		}
		size := 4 + statSize
		for _, child := range l.children {
			size += 4 + len(child)
		}
		if size != len(b) {
			t.Errorf("read %d of %d bytes", size, len(b))
		}
	})
}
