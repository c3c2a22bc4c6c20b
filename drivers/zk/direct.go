package zk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	gozk "github.com/go-zookeeper/zk"
)

// What the protocol has in requests and answers past the library.
const (
	statSize = 4*8 + 3*4 + 8 + 2*4 + 8

	// firstDirect is the first number of such a request. The library counts from 1; when the library comes halfway there, all requests go
	// through the library.
	firstDirect = 1 << 30
	maxLibrary  = firstDirect / 2

	// maxUnanswered bounds how many bytes of requests a server may owe answers to when one goes past the library. A connection
	// takes so few bytes at once, whatever the server does, so a caller whose context is over is not kept.
	maxUnanswered = 4 << 10
)

// taker takes what came of a request, in the goroutine that reads, or in the one that ends the connection: a taker never blocks.
type taker func(body []byte, err error)

// direct sends a request past the library, and reports whether the request was sent: the connection has to be up, and idle enough. The
// taker is then called once. A hand-over between clients waits for two requests, and direct is for these: through the library, seven
// goroutines have to be woken for these, one after the other, and this way one.
func (s *session) direct(op int32, arguments []byte, take taker) bool {
	l := s.link.Load()
	return l != nil && l.direct(op, arguments, take)
}

func (l *link) direct(op int32, arguments []byte, take taker) bool {
	if !l.writing.TryLock() {
		return false
	}
	defer l.writing.Unlock()
	s := l.session
	now := s.driver.now()
	if s.hasExpired(now) {
		return false
	}
	request := l.noteDirect(op, arguments, take, now)
	if request == nil {
		return false
	}
	s.lastSent.Store(now)
	if _, err := l.Conn.Write(request); err != nil {
		l.Close()
	}
	return true
}

// noteDirect makes a request and takes note of the request, or returns nil if the request has to go through the library.
func (l *link) noteDirect(op int32, arguments []byte, take taker, now int64) []byte {
	size := 4 + 4 + 4 + len(arguments)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending || l.library >= maxLibrary || l.unanswered+size > maxUnanswered {
		return nil
	}
	l.directs = (l.directs + 1) % firstDirect // so that there is no number twice among those under way
	xid := firstDirect + l.directs
	l.sent = append(l.sent, stamp{xid: xid, op: op, at: now, size: size, take: take})
	l.unanswered += size
	b := make([]byte, 0, size)
	b = binary.BigEndian.AppendUint32(b, uint32(size-4))
	b = binary.BigEndian.AppendUint32(b, uint32(xid))
	b = binary.BigEndian.AppendUint32(b, uint32(op))
	return append(b, arguments...)
}

// buffers reports whether a connection takes a few bytes at once, whatever the server does.
func buffers(c net.Conn) bool {
	_, ok := c.(*net.TCPConn)
	return ok
}

// removeNow asks to remove a node past the library, or returns nil.
func (s *session) removeNow(node string) <-chan reply[struct{}] {
	c := make(chan reply[struct{}], 1)
	version := int32(-1)
	if !s.direct(opDelete, binary.BigEndian.AppendUint32(appendText(nil, node), uint32(version)), func(_ []byte, err error) {
		c <- reply[struct{}]{err: ofOwn(err)}
	}) {
		return nil
	}
	return c
}

// listNow asks past the library for the children of a node, and reports whether the request was sent.
func (s *session) listNow(path string, take func(listing, error)) bool {
	return s.direct(opChildren, append(appendText(nil, path), 0), func(body []byte, err error) { // 0: no watch
		var l listing
		if err == nil {
			l, err = readListing(body)
		}
		take(l, err)
	})
}

func appendText(b []byte, text string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

// readListing reads the answer to opChildren.
func readListing(b []byte) (l listing, err error) {
	count, b, ok := readNumber(b)
	if !ok || count < 0 || int(count) > len(b)/4 {
		return listing{}, errAnswer
	}
	l.children = make([]string, count)
	for i := range l.children {
		var size int32
		size, b, ok = readNumber(b)
		if !ok || size < 0 || int(size) > len(b) {
			return listing{}, errAnswer
		}
		l.children[i], b = string(b[:size]), b[size:]
	}
	if len(b) != statSize {
		return listing{}, errAnswer
	}
	if _, err := binary.Decode(b, binary.BigEndian, &l.stat); err != nil {
		return listing{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	return l, nil
}

func readNumber(b []byte) (n int32, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, false
	}
	return int32(binary.BigEndian.Uint32(b)), b[4:], true
}

// errOf returns the error of an answer, by the names of the library.
func errOf(code int32) error {
	switch code {
	case 0:
		return nil
	case -101:
		return gozk.ErrNoNode
	case -102:
		return gozk.ErrNoAuth
	case -111:
		return gozk.ErrNotEmpty
	case -112, -12: // SESSIONEXPIRED and UNKNOWNSESSION
		return gozk.ErrSessionExpired
	case -118:
		return gozk.ErrSessionMoved
	}
	return errorOf(code)
}

// errUnanswered is the error of a request that the server skipped: a later one was answered.
var errUnanswered = errors.New("the server skipped a request")
