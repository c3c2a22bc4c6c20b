package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// link is one connection through a Wire.
type link struct {
	wire              *Wire
	client, server    net.Conn
	requests, replies pipe

	// The fields below are guarded by wire.mu.
	gone   bool   // both ends are closed
	seen   []byte // the last that the client sent
	trap   *trap  // that a request has sprung
	held   bool   // requests wait; trap.hold
	sent   bool   // the request of the trap has passed
	silent bool   // the reply was lost: the client's end is closed, and the server is heard out
	torn   bool   // something has vanished
}

// pipe is one direction of a link.
type pipe struct {
	link     *link
	dir      Direction
	src, dst net.Conn
	mu       sync.Mutex // held while bytes pass, from the decision that they may
	over     bool       // guarded by wire.mu: src has ended, and that was passed on
}

// run moves bytes until both directions have ended.
func (l *link) run() {
	var wg sync.WaitGroup
	wg.Go(l.requests.run)
	wg.Go(l.replies.run)
	wg.Wait()
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	l.end(net.Conn.Close)
}

// cut breaks the connection. wire.mu is held.
func (l *link) cut() {
	if !l.gone && !l.silent {
		l.wire.traffic.Cut++
	}
	l.abort()
}

// abort passes on that one end broke the connection. wire.mu is held.
func (l *link) abort() {
	l.end(func(c net.Conn) error {
		reset(c)
		return nil
	})
}

// end closes both ends. wire.mu is held.
func (l *link) end(closeConn func(net.Conn) error) {
	if l.gone {
		return
	}
	l.gone = true
	closeConn(l.client)
	closeConn(l.server)
	delete(l.wire.links, l)
	if l.trap != nil && !l.trap.hold && !l.silent {
		close(l.trap.sprung)
	}
	l.wire.notify()
}

// lose breaks the connection for the client, and ends it in good order for the server, so that the server still gets what was sent.
// wire.mu is held.
func (l *link) lose() {
	if l.gone || l.silent {
		return
	}
	l.silent = true
	l.wire.traffic.Cut++
	reset(l.client)
	if closeWrite(l.server) != nil {
		l.server.Close()
	}
	if l.trap != nil && !l.trap.hold {
		close(l.trap.sprung)
	}
	l.wire.notify()
}

// verdict says what becomes of bytes.
type verdict int

const (
	passes verdict = iota
	waits
	vanishes
	isLost // the reply, and with it the connection
	isOver // the link
)

// verdict decides about what p carries. If it is to wait, changed tells when to ask again. wire.mu is held.
func (p *pipe) verdict() (v verdict, changed <-chan struct{}) {
	l, w := p.link, p.link.wire
	waiting := l.trap != nil && !l.trap.hold // for the reply to a certain request
	switch {
	case l.gone, l.silent && p.dir == Requests:
		return isOver, nil
	case l.silent:
		return vanishes, nil
	case w.faults.hold&p.dir != 0, p.dir == Requests && l.held, p.dir == Replies && waiting && !l.sent:
		return waits, w.wait()
	case p.dir == Replies && (waiting || w.faults.lose):
		return isLost, nil
	case w.faults.drop&p.dir != 0:
		return vanishes, nil
	}
	return passes, nil
}

// chunk is what one read gave.
type chunk struct {
	b   []byte
	due time.Time // when it may arrive; zero for at once
	err error     // that ended the reading, after b
}

// run moves bytes until src ends, or the link.
func (p *pipe) run() {
	defer p.finish()
	const ahead = 256 // what is late does not make what comes after it later
	chunks, stop := make(chan chunk, ahead), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { p.read(chunks, stop) })
	defer reader.Wait()
	defer close(stop)
	for c := range chunks {
		if len(c.b) > 0 && !p.forward(c) {
			return
		}
		if c.err != nil {
			p.end(c.err)
			return
		}
	}
}

// read reads until src ends, which it does at the latest when the link does.
func (p *pipe) read(chunks chan<- chunk, stop <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.src.Read(buf)
		c := chunk{b: bytes.Clone(buf[:n]), err: err}
		if d := p.lateness(); d > 0 {
			c.due = time.Now().Add(d)
		}
		select {
		case chunks <- c:
		case <-stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// lateness is for how long the Wire delays what p carries.
func (p *pipe) lateness() time.Duration {
	w := p.link.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faults.delay[p.dir]
}

func (p *pipe) finish() {
	p.link.wire.mu.Lock()
	defer p.link.wire.mu.Unlock()
	p.over = true
	p.link.wire.notify()
}

// forward lets bytes pass, wait or vanish. It returns false if no more are to be read.
func (p *pipe) forward(c chunk) bool {
	b := c.b
	if p.dir == Requests {
		p.link.spring(b)
	}
	if !p.await(c.due) {
		return false
	}
	counted := false
	for len(b) > 0 {
		n, v, changed, err := p.write(b)
		b = b[n:]
		switch {
		case err != nil:
			p.broken()
			return false
		case v == isOver:
			return false
		case v == vanishes:
			return true
		case v == waits:
			if !counted {
				p.count(func(t *Traffic) { t.Held += int64(len(b)) })
				counted = true
			}
			<-changed
		}
	}
	if p.dir == Requests {
		p.link.passed()
	}
	return true
}

// write decides about b, and writes it, or a slice of it, if it may pass.
func (p *pipe) write(b []byte) (n int, v verdict, changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, w := p.link, p.link.wire
	w.mu.Lock()
	v, changed = p.verdict()
	slice := w.faults.slice
	switch v {
	case isLost:
		l.lose()
		v = vanishes
		w.traffic.Dropped += int64(len(b))
	case vanishes:
		if w.traffic.Dropped += int64(len(b)); !l.silent {
			l.torn = true
		}
	}
	w.mu.Unlock()
	if v != passes {
		return 0, v, changed, nil
	}
	if slice > 0 {
		b = b[:min(slice, len(b))]
	}
	n, err = p.dst.Write(b)
	p.count(func(t *Traffic) {
		if p.dir == Requests {
			t.Requests += int64(n)
		} else {
			t.Replies += int64(n)
		}
	})
	if errors.Is(err, os.ErrDeadlineExceeded) { // by settle: decide again
		err = nil
	}
	return n, v, nil, err
}

// settle returns when everything that was decided before has taken place. A write that is stuck, since dst does not read, is stopped.
func (p *pipe) settle() {
	p.dst.SetWriteDeadline(time.Unix(1, 0)) // an error means that the link is over
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dst.SetWriteDeadline(time.Time{})
}

func (p *pipe) count(add func(*Traffic)) {
	p.link.wire.mu.Lock()
	defer p.link.wire.mu.Unlock()
	add(&p.link.wire.traffic)
}

// await waits until something is due. It returns false if the link ended meanwhile.
func (p *pipe) await(due time.Time) bool {
	if due.IsZero() {
		return true
	}
	l, w := p.link, p.link.wire
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		w.mu.Lock()
		gone, changed := l.gone, w.wait()
		w.mu.Unlock()
		if gone {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-changed:
		}
	}
}

// end passes on that src has ended, when that can pass.
func (p *pipe) end(err error) {
	l, w := p.link, p.link.wire
	for {
		w.mu.Lock()
		v, changed := p.verdict()
		switch {
		case v == isLost:
			l.lose()
		case v == vanishes && !l.silent: // nobody gets to know before Heal
			v, changed = waits, w.wait()
		case v == passes && (err != io.EOF || closeWrite(p.dst) != nil):
			l.abort()
		}
		w.mu.Unlock()
		if v != waits {
			return
		}
		<-changed
	}
}

// broken passes on that dst takes no more, for its side has closed the connection. It does so when the other direction, in which
// that news travels, has delivered what was sent before.
func (p *pipe) broken() {
	l, w := p.link, p.link.wire
	back := &l.requests
	if p.dir == Requests {
		back = &l.replies
	}
	for {
		w.mu.Lock()
		over, changed := back.over || l.gone, w.wait()
		if over {
			l.end(net.Conn.Close)
		}
		w.mu.Unlock()
		if over {
			return
		}
		<-changed
	}
}

// spring looks for the request that a trap waits for in what the client sends.
func (l *link) spring(b []byte) {
	const longest = 4 << 10
	w := l.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	old := len(l.seen)
	seen := append(l.seen, b...)
	for i, t := range w.traps {
		if l.trap != nil && !l.trap.hold {
			break // this connection is about to break
		}
		if at := bytes.LastIndex(seen, t.match); at >= 0 && at+len(t.match) > old {
			w.traps = append(w.traps[:i:i], w.traps[i+1:]...)
			l.trap, l.held = t, t.hold
			if t.hold {
				close(t.sprung)
			}
			w.notify()
			break
		}
	}
	l.seen = append([]byte(nil), seen[max(0, len(seen)-longest):]...)
}

// passed notes that all that the client sent so far has passed.
func (l *link) passed() {
	w := l.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.trap != nil && !l.trap.hold && !l.sent {
		l.sent = true
		w.notify()
	}
}
