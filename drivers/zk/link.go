package zk

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	gozk "github.com/go-zookeeper/zk"
)

// Constants of the protocol headers.
const (
	xidPing = -2

	opCreate          = 1
	opDelete          = 2
	opGetData         = 4
	opSetData         = 5
	opSetACL          = 7
	opSync            = 9
	opChildren        = 12 // includes the state of the node itself
	opCheck           = 13
	opMulti           = 14
	opCreate2         = 15
	opCreateContainer = 19
	opCreateTTL       = 21
	opWatch           = 101 // set watches again after a reconnect
	opClose           = -11
	opError           = -1 // in the answer to a transaction

	codeNodeExists = 1<<32 - 110
)

// link is a connection of a session. The link inspects the traffic, because the
// library does not report the timeout that the server granted, the send times
// of answered requests, or the transaction ids of the answers.
//
// The link also keeps the last transaction id in place of the library, whose
// goroutines write and read the library's own id at the same time. So the link
// removes the ids from the answers that the library gets, and adds the id of
// the session to the library's requests.
//
// For a similar reason the library gets NODEEXISTS instead of the path of a
// container that was created. When the session is closed, the library's
// CreateContainer returns the path without an answer, while the reading
// goroutine may be writing the path.
//
// Some requests bypass the library: see direct.
type link struct {
	net.Conn
	session *session
	buffers bool // see direct

	writing sync.Mutex // held while a request is written, so that sent is in the order of the writes

	mu         sync.Mutex
	begun      bool    // the request for the session was sent
	opened     bool    // and the request was answered
	ending     bool    // the request to end the session was sent, or the connection is closed
	sent       []stamp // unanswered requests, in their order
	unanswered int     // size of the unanswered requests in bytes
	began      int64   // when the request for the session was sent
	library    int32   // number of the library's last request
	directs    int32   // number of other requests

	// Used only by the reader.
	warm  bool   // a request of the library was answered, so the server knows the user again
	frame []byte // the last frame that arrived
	rest  []byte // the part of the frame that the library has not read
}

// stamp is a request on its way.
type stamp struct {
	xid    int32
	op     int32
	at     int64
	size   int
	handle handler // nil for a request of the library
}

// Write implements net.Conn. The library writes one request at a time. After
// the end of a session only the request to end it is sent, so that no request
// keeps the session alive.
//
// Write never fails. Instead it ends the connection, which the library notices
// when reading. A request that cannot be written gets its error from the
// library twice, and even a third time if the session is closed at the same
// moment. Its channel has room for two, so the library would hang forever.
func (l *link) Write(b []byte) (int, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	s := l.session
	now := s.driver.now()
	request, last := l.note(b, now)
	if !last && s.End.Passed(now) {
		l.Close()
		return len(b), nil
	}
	if !last {
		s.lastSent.Store(now)
	}
	if _, err := l.Conn.Write(request); err != nil {
		l.Close()
	}
	return len(b), nil
}

// note records a request. It returns the bytes to send, and whether the request
// ends the session.
func (l *link) note(b []byte, now int64) (request []byte, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.begun, l.began = true, now
		return l.withZxid(b, 8), false
	}
	xid, op := int32(binary.BigEndian.Uint32(b[4:])), int32(binary.BigEndian.Uint32(b[8:]))
	if op == opWatch {
		b = l.withZxid(b, 12)
	}
	last = op == opClose
	l.ending = l.ending || last
	if xid != xidPing {
		l.sent = append(l.sent, stamp{xid: xid, op: op, at: now, size: len(b)})
		l.unanswered += len(b)
		l.library = max(l.library, xid)
	}
	return b, last
}

// withZxid returns a copy of a request, with the last transaction known to the
// session written at the given offset.
func (l *link) withZxid(b []byte, at int) []byte {
	b = slices.Clone(b)
	binary.BigEndian.PutUint64(b[at:], uint64(l.session.zxid.Load()))
	return b
}

// SetReadDeadline implements net.Conn. The library allows a server several
// times the library's timeout to answer the request for the session. This
// method makes the library move on while another server can still be tried.
func (l *link) SetReadDeadline(t time.Time) error {
	if !l.isOpen() && !t.IsZero() {
		if limit := time.Now().Add(l.session.welcomeFor()); t.After(limit) {
			t = limit
		}
	}
	return l.Conn.SetReadDeadline(t)
}

// Read implements net.Conn. The library gets complete and valid frames, changed
// as described at link. An invalid frame ends the connection, and the library
// gets none of it.
func (l *link) Read(b []byte) (int, error) {
	if len(l.rest) == 0 {
		most := int64(maxWelcome)
		if l.isOpen() {
			most = maxAnswer
		}
		frame, err := readFrame(l.Conn, l.frame, most)
		if err == nil {
			err = l.received(frame)
		}
		if errors.Is(err, errAnswer) {
			l.session.confused.Store(true)
			l.session.failed(err)
		}
		if err != nil {
			return 0, err
		}
		l.frame, l.rest = frame, frame
	}
	n := copy(b, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// isOpen reports whether the server has granted the session on this connection.
func (l *link) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened
}

// received handles a frame.
func (l *link) received(frame []byte) error {
	s := l.session
	now := s.driver.now()
	body := frame[lengthSize:]
	l.mu.Lock()
	if !l.opened {
		l.mu.Unlock()
		return l.welcomed(body, now)
	}
	if len(body) < headerSize {
		l.mu.Unlock()
		return errAnswer
	}
	xid, zxid, code := int32(binary.BigEndian.Uint32(body)), body[4:12], int32(binary.BigEndian.Uint32(body[12:]))
	request, skipped := l.matchAnswer(xid)
	l.mu.Unlock()
	for _, handle := range skipped {
		handle(nil, errUnanswered)
	}
	answer := request.size > 0
	switch {
	case request.handle != nil: // the handler checks whether the answer is valid
	case request.op == opWatch && code != 0: // otherwise the library would consider the watches set
		return errAnswer
	case !answer && xid >= 0, code == 0 && !makesSense(request.op, body[headerSize:]):
		return errAnswer
	}
	s.heard.Store(now)
	if answer {
		if xid < firstDirect && l.buffers && !l.warm {
			l.warm = true
			s.link.Store(l)
		}
		s.saw(int64(binary.BigEndian.Uint64(zxid)))
		s.answeredAfter(now - request.at)
		if r := reachOf(request.op); code == 0 && r != toServer {
			s.extend(s.confirmation.noteAnswer(r, request.at, now))
		}
		if request.op == opClose {
			s.gone.Store(true)
		}
	}
	clear(zxid)
	if request.op == opCreateContainer && code == 0 {
		binary.BigEndian.PutUint32(body[12:], codeNodeExists)
	}
	if request.handle != nil {
		request.handle(body[headerSize:], errOf(code))
	}
	return nil
}

// welcomed handles the answer to the request for the session.
func (l *link) welcomed(body []byte, now int64) error {
	if len(body) < welcomeSize || !fits(body[welcomeSize:], 1) {
		return errAnswer
	}
	timeout := time.Duration(int32(binary.BigEndian.Uint32(body[4:]))) * time.Millisecond
	id := int64(binary.BigEndian.Uint64(body[8:])) // 0: the session has ended
	if id != 0 && timeout <= 0 {
		return errAnswer // otherwise the library would panic
	}
	l.mu.Lock()
	l.opened = true
	began := l.began
	l.mu.Unlock()
	s := l.session
	if now-began < int64(s.patience()) {
		s.driver.cutOff.Store(0)
	}
	s.heard.Store(now)
	if id != 0 {
		s.current.Store(l)
		s.opened(began, now, timeout)
	}
	return nil
}

// matchAnswer removes and returns the request with the number of an answer, if
// any. Answers come in the order of their requests, so the server has skipped
// earlier requests, and matchAnswer returns their handlers. l.mu is held.
func (l *link) matchAnswer(xid int32) (request stamp, skipped []handler) {
	for xid >= 0 && len(l.sent) > 0 {
		first := l.sent[0]
		l.sent[0] = stamp{}
		l.sent = l.sent[1:]
		l.unanswered -= first.size
		if first.xid == xid {
			return first, skipped
		}
		if first.handle != nil {
			skipped = append(skipped, first.handle)
		}
	}
	return stamp{}, skipped
}

// Close implements net.Conn.
func (l *link) Close() error {
	s := l.session
	s.forget(l)
	l.mu.Lock()
	waits, began := l.begun && !l.opened && !l.ending, l.began
	l.mu.Unlock()
	if waits {
		s.tooSlow(s.driver.now() - began)
	}
	err := l.Conn.Close()
	for _, handle := range l.handlers() {
		handle(nil, gozk.ErrConnectionClosed)
	}
	return err
}

// handlers ends the sending of direct requests. It removes and returns the
// handlers of their answers.
func (l *link) handlers() (left []handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = true
	for i := range l.sent {
		if handle := l.sent[i].handle; handle != nil {
			left = append(left, handle)
			l.sent[i].handle = nil
		}
	}
	return left
}

// dial is the Dialer of the library.
func (s *session) dial(network, addr string, _ time.Duration) (net.Conn, error) {
	if s.IsDead() {
		return nil, errOver
	}
	if s.confused.Swap(false) {
		s.driver.life.Sleep(s.online, s.patience()/8)
	}
	ctx, cancel := context.WithTimeout(s.online, s.patience())
	defer cancel()
	c, err := s.driver.options.Dial(ctx, network, addr)
	buffers := buffers(c)
	if err == nil && s.driver.options.TLS != nil {
		c, err = secure(ctx, c, addr, s.driver.options.TLS)
	}
	if err != nil {
		s.failed(err)
		s.driver.life.Sleep(s.online, s.patience()/8)
		return nil, err
	}
	l := &link{Conn: c, session: s, buffers: buffers}
	if !s.remember(l) {
		c.Close()
		return nil, errOver
	}
	return l, nil
}

func secure(ctx context.Context, c net.Conn, addr string, config *tls.Config) (net.Conn, error) {
	config = config.Clone()
	if host, _, err := net.SplitHostPort(addr); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	t := tls.Client(c, config)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return t, nil
}

// servers is the HostProvider of the library. The library's own provider waits
// a second before it tries a single server again, and looks addresses up only
// once.
type servers struct {
	session *session
	hosts   []string
	next    int
}

// Init implements the library's HostProvider.
func (p *servers) Init(hosts []string) error {
	p.hosts = hosts
	return nil
}

// Len implements the library's HostProvider.
func (p *servers) Len() int { return len(p.hosts) }

// Next implements the library's HostProvider. For a dead session Next claims
// that all servers have been tried, because only then does the library check
// whether the connection was closed.
func (p *servers) Next() (server string, all bool) {
	server = p.hosts[p.next%len(p.hosts)]
	p.next++
	return server, p.session.IsDead()
}

// Connected implements the library's HostProvider.
func (p *servers) Connected() {}

// Constants of requests and answers that bypass the library.
const (
	statSize = 4*8 + 3*4 + 8 + 2*4 + 8

	// firstDirect is the number of the first such request. The library counts
	// from 1. When the library's own numbers reach half of firstDirect, all
	// requests go through the library.
	firstDirect = 1 << 30
	maxLibrary  = firstDirect / 2

	// maxUnanswered limits the bytes of unanswered requests when a request
	// bypasses the library. A connection accepts this many bytes immediately
	// even if the server does not read, so a caller whose context has ended is
	// not blocked.
	maxUnanswered = 4 << 10
)

// handler receives the outcome of a request. It is called by the goroutine that
// reads or by the goroutine that ends the connection, and must not block.
type handler func(body []byte, err error)

// direct sends a request that bypasses the library, and reports whether the
// request was sent. The connection must be up and idle enough. The handler is
// then called once. A hand-over between clients waits for two requests, which
// are sent with direct. Through the library they would wake seven goroutines,
// one after another, instead of one.
func (s *session) direct(op int32, arguments []byte, handle handler) bool {
	l := s.link.Load()
	return l != nil && l.direct(op, arguments, handle)
}

func (l *link) direct(op int32, arguments []byte, handle handler) bool {
	if !l.writing.TryLock() {
		return false
	}
	defer l.writing.Unlock()
	s := l.session
	now := s.driver.now()
	if s.End.Passed(now) {
		return false
	}
	request := l.noteDirect(op, arguments, handle, now)
	if request == nil {
		return false
	}
	s.lastSent.Store(now)
	if _, err := l.Conn.Write(request); err != nil {
		l.Close()
	}
	return true
}

// noteDirect makes a request and records it. It returns nil if the request must
// go through the library.
func (l *link) noteDirect(op int32, arguments []byte, handle handler, now int64) []byte {
	size := 4 + 4 + 4 + len(arguments)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending || l.library >= maxLibrary || l.unanswered+size > maxUnanswered {
		return nil
	}
	l.directs = (l.directs + 1) % firstDirect // so that no two pending requests have the same number
	xid := firstDirect + l.directs
	l.sent = append(l.sent, stamp{xid: xid, op: op, at: now, size: size, handle: handle})
	l.unanswered += size
	b := make([]byte, 0, size)
	b = binary.BigEndian.AppendUint32(b, uint32(size-4))
	b = binary.BigEndian.AppendUint32(b, uint32(xid))
	b = binary.BigEndian.AppendUint32(b, uint32(op))
	return append(b, arguments...)
}

// buffers reports whether a connection accepts a few bytes immediately, even if
// the server does not read.
func buffers(c net.Conn) bool {
	_, ok := c.(*net.TCPConn)
	return ok
}

// removeNow requests the removal of a node without the library, or returns nil.
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

// listNow requests the children of a node without the library and reports
// whether the request was sent.
func (s *session) listNow(path string, handle func(listing, error)) bool {
	return s.direct(opChildren, append(appendText(nil, path), 0), func(body []byte, err error) {
		// 0: no watch
		var l listing
		if err == nil {
			l, err = readListing(body)
		}
		handle(l, err)
	})
}

func appendText(b []byte, text string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

// readListing parses the answer to opChildren.
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

// errOf returns the error of an answer, as the library's named error.
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

// errUnanswered is the error for a request that the server skipped, because a
// later one was answered.
var errUnanswered = errors.New("the server skipped a request")

// The parts of a frame.
const (
	lengthSize = 4
	headerSize = 4 + 8 + 4 // of an answer: its number, the id of the transaction, the error
	// of the answer to the request for a session: version, timeout, session;
	// the password follows
	welcomeSize = 4 + 4 + 8
	maxWelcome  = 256 // with the password
)

// keptFrame is the largest buffer that a connection keeps for its next frame.
const keptFrame = 64 << 10

// readFrame reads a frame of at most the given size, with its length, into a
// buffer, or into a new one. The buffer grows as bytes arrive, so that an
// incorrect length does not cost memory.
func readFrame(r io.Reader, buffer []byte, most int64) ([]byte, error) {
	if cap(buffer) > keptFrame {
		buffer = nil
	}
	frame := slices.Grow(buffer[:0], lengthSize)[:lengthSize]
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(frame))
	if size > most {
		return nil, fmt.Errorf("%w: it claims to have %d bytes", errAnswer, size)
	}
	for left := int(size); left > 0; {
		have := len(frame)
		next := min(left, max(have, keptFrame))
		frame = slices.Grow(frame, next)[:have+next]
		if _, err := io.ReadFull(r, frame[have:]); err != nil {
			return nil, err
		}
		left -= next
	}
	return frame, nil
}

// makesSense reports whether the library may decode the body of an answer. The
// library allocates memory for as many bytes and names as the server claims to
// send before it checks that they exist, and panics on a transaction's answer
// without an end. Either would end the program. Wrong lengths of strings cause
// only errors.
func makesSense(op int32, body []byte) bool {
	switch op {
	case opGetData:
		return fits(body, 1)
	case opChildren:
		return fits(body, 4) // the length of each name
	case opMulti:
		return hasEnd(body)
	}
	return true
}

// fits reports whether b begins with a number of items of at least the given
// size, and is long enough to contain them. A negative number stands for none,
// except for names, where the library would treat it as a large number.
func fits(b []byte, size int) bool {
	count, b, ok := readNumber(b)
	return ok && int(count) <= len(b)/size && (count >= 0 || size == 1)
}

// hasEnd reports whether the answer to a transaction has a header and a body
// for each operation, and the header that ends the answer.
func hasEnd(b []byte) bool {
	const header = 4 + 1 + 4 // operation, whether this is the end, error
	for len(b) >= header {
		op, end := int32(binary.BigEndian.Uint32(b)), b[4] != 0
		if end {
			return true
		}
		b = b[header:]
		size := 0
		switch op {
		case opCreate: // the path
			length, _, ok := readNumber(b)
			if !ok || length < 0 {
				return false
			}
			size = 4 + int(length)
		case opSetData:
			size = statSize
		case opError:
			size = 4
		case opDelete, opCheck:
		default:
			return true // the library refuses such an answer
		}
		if size > len(b) {
			return false
		}
		b = b[size:]
	}
	return false
}
