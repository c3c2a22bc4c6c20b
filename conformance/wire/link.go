package wire

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
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
	gone bool   // both ends are closed
	seen []byte // the last bytes of the client, while a trap waits
	trap *trap  // the trap that a request has sprung
	sent bool   // the request of the trap has passed
	// the reply was lost: the client's end is closed, and the Wire reads all of
	// the server's bytes
	silent bool
	torn   bool // some bytes have vanished, or were changed

	stranded bool // all bytes vanish because of Strand

	stuck bool // requests wait, because of HoldRequest
	// requests have waited this way, so the Wire must read all of the server's
	// bytes even if the client hangs up
	overtaken bool
}

// pipe is one direction of a link.
type pipe struct {
	link     *link
	dir      Direction
	src, dst net.Conn
	mu       sync.Mutex // held from the decision that bytes may pass until they have passed
	over     bool       // guarded by wire.mu: src has ended, and dst was notified
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

// abort breaks both ends, because one end broke the connection. wire.mu is
// held.
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
	l.release()
	l.wire.notify()
}

// lose breaks the connection for the client and ends it in an orderly way for
// the server, so that the server still receives all requests. wire.mu is held.
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
	l.wire.notify()
}

// verdict is the fate of a chunk of bytes.
type verdict int

const (
	passes verdict = iota
	waits
	vanishes
	isLost // the reply is lost, and the connection with it
	isOver // the link has ended
)

// verdict decides the fate of the bytes in p. If the bytes must wait, changed
// is closed when the caller should call verdict again. wire.mu is held.
func (p *pipe) verdict() (v verdict, changed <-chan struct{}) {
	l, w := p.link, p.link.wire
	waiting := l.trap != nil && !l.trap.hold // must be read for the reply to be lost
	switch {
	case l.gone, l.silent && p.dir == Requests:
		return isOver, nil
	case l.silent, l.stranded:
		return vanishes, nil
	case w.faults.hold&p.dir != 0, p.dir == Requests && l.stuck, p.dir == Replies && waiting && !l.sent:
		return waits, w.wait()
	case p.dir == Replies && (waiting || w.faults.lose):
		return isLost, nil
	case w.faults.drop&p.dir != 0:
		return vanishes, nil
	}
	return passes, nil
}

// chunk is the result of one read.
type chunk struct {
	b   []byte
	due time.Time // when b may arrive; zero means immediately
	err error     // the error that ended the reading, after b
}

// run moves bytes until src or the link ends.
func (p *pipe) run() {
	defer p.finish()
	const ahead = 256 // late chunks do not delay the reading of later chunks
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

// read reads until src or the link ends.
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

// lateness returns how long the Wire delays the bytes in p.
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

// forward lets bytes pass, wait or vanish. It returns false if p needs no more
// bytes.
func (p *pipe) forward(c chunk) bool {
	b, w := c.b, p.link.wire
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
			if p.dir == Requests {
				p.link.passed() // as far as possible
			}
			p.broken()
			return false
		case v == isOver:
			return false
		case v == vanishes:
			return true
		case v == waits:
			if !counted {
				w.mu.Lock()
				w.traffic.Held += int64(len(b))
				w.notify()
				w.mu.Unlock()
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

// write decides the fate of b. If b may pass, it writes all or part of it.
func (p *pipe) write(b []byte) (n int, v verdict, changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, w := p.link, p.link.wire
	w.mu.Lock()
	v, changed = p.verdict()
	switch v {
	case passes:
		if g := w.faults.garble; g != nil && p.dir == Replies {
			changed := g.change(b)
			w.traffic.Garbled += changed
			l.torn = l.torn || changed > 0
		}
		p.count(len(b))
	case isLost:
		l.lose()
		v = vanishes
		w.traffic.Dropped += int64(len(b))
	case vanishes:
		w.traffic.Dropped += int64(len(b))
		l.torn = l.torn || !l.silent
		w.notify()
	}
	w.mu.Unlock()
	if v != passes {
		return 0, v, changed, nil
	}
	if n, err = p.dst.Write(b); n < len(b) {
		w.mu.Lock()
		p.count(n - len(b))
		w.mu.Unlock()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) { // set by settle: decide again
		err = nil
	}
	return n, v, nil, err
}

// flush returns when all earlier decisions in direction d have taken effect. It
// interrupts a write that is stuck because its reader does not read.
func flush(links []*link, d Direction) {
	for _, l := range links {
		for _, p := range []*pipe{&l.requests, &l.replies} {
			if d&p.dir != 0 {
				p.flush()
			}
		}
	}
}

func (p *pipe) flush() {
	p.dst.SetWriteDeadline(time.Unix(1, 0)) // an error means that the link has ended
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dst.SetWriteDeadline(time.Time{})
}

// count records that n bytes pass. wire.mu is held.
func (p *pipe) count(n int) {
	if t := &p.link.wire.traffic; p.dir == Requests {
		t.Requests += int64(n)
	} else {
		t.Replies += int64(n)
	}
}

// await waits until the time due. It returns false if the link ends in the
// meantime.
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

// end notifies dst that src has ended, as soon as the faults allow that to
// pass.
func (p *pipe) end(err error) {
	l, w := p.link, p.link.wire
	for {
		w.mu.Lock()
		v, changed := p.verdict()
		switch {
		case v == isLost, v == passes && p.dir == Requests && (l.trap != nil || l.overtaken):
			// the Wire must read all of the server's bytes even if the client
			// hangs up
			l.lose()
		case v == vanishes && !l.silent: // the other side does not notice before Heal
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

// broken notifies src that dst accepts no more bytes, because dst has closed
// the connection. The notice travels in the other direction, so broken first
// waits until that direction has delivered all earlier bytes.
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

// garbler changes bytes.
type garbler struct {
	rand  *rand.Rand
	every int
}

// change garbles b and returns the number of changed bytes.
func (g *garbler) change(b []byte) (n int64) {
	for i := range b {
		if g.rand.IntN(g.every) == 0 {
			b[i] ^= byte(1 + g.rand.IntN(255))
			n++
		}
	}
	return n
}
