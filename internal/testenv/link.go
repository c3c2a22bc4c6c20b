package testenv

import (
	"bytes"
	"io"
	"net"
	"time"
)

// link is a connection from a client to a proxy, and the one to the server that belongs to it. The proxy's mutex guards it.
type link struct {
	client, server net.Conn
	up, down       stream
	running        int   // goroutines
	closed         bool  // they end
	lost           bool  // replies were thrown away or changed: what would follow them makes no sense to the client
	sprung         *trap // by a request that is not yet forwarded to its end, or the cut that follows
	mute           bool  // replies are thrown away until the server has ended the connection
}

// stream is one direction of a link. What is read is kept until it can be written, so that nothing depends on the size of buffers
// in the kernel.
type stream struct {
	dir     Direction
	dst     net.Conn
	held    []byte
	eof     bool // nothing follows what is held
	writing bool
}

// accept ends with the listener.
func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() {
			server, err := net.DialTimeout("tcp", p.target, hangGuard)
			if err != nil {
				abort(client)
				return
			}
			p.forward(listener, client, server)
		})
	}
}

func (p *Proxy) forward(listener net.Listener, client, server net.Conn) {
	l := &link{
		client: client,
		server: server,
		up:     stream{dir: Requests, dst: server},
		down:   stream{dir: Replies, dst: client},
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = true
	if p.listener != listener {
		p.reset(l) // it was cut while we connected
		return
	}
	for _, run := range []func(){
		func() { p.read(l, &l.up, client) },
		func() { p.read(l, &l.down, server) },
		func() { p.write(l, &l.up) },
		func() { p.write(l, &l.down) },
	} {
		l.running++
		p.wg.Go(func() {
			run()
			p.mu.Lock()
			defer p.mu.Unlock()
			l.running--
			p.changed.Broadcast()
		})
	}
}

// read keeps what comes from src for s.
func (p *Proxy) read(l *link, s *stream, src net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if !p.keep(l, s, buf[:n], err) {
			return
		}
	}
}

func (p *Proxy) keep(l *link, s *stream, data []byte, err error) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.dir == Replies && (p.drop || l.mute) {
		l.lost = l.lost || len(data) > 0
	} else {
		if s.dir == Replies && p.garbler != nil && p.garbler.change(data) {
			l.lost = true
		}
		s.held = append(s.held, data...)
	}
	switch {
	case l.closed || err == nil:
	case l.mute:
		// A client that hangs up must not keep the server from handling the request.
		if s.dir == Replies {
			p.reset(l)
		}
	case err == io.EOF || p.frozen&s.dir != 0:
		s.eof = true
	default:
		p.reset(l) // a reset does not wait in line behind data
	}
	p.changed.Broadcast()
	return !l.closed && err == nil
}

// change garbles data, and reports whether it did.
func (g *garbler) change(data []byte) bool {
	changed := false
	for i := range data {
		if g.rand.IntN(g.every) == 0 {
			data[i] ^= byte(1 + g.rand.IntN(255))
			changed = true
		}
	}
	return changed
}

// write passes on what s holds.
func (p *Proxy) write(l *link, s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for !l.closed && !p.due(l, s) {
			p.changed.Wait()
		}
		switch {
		case l.closed:
			return
		case len(s.held) == 0:
			p.finish(l, s)
			return
		}
		if s.dir == Requests {
			p.spring(l)
		}
		p.writeHeld(l, s)
		if s.dir == Requests && l.sprung != nil && len(s.held) == 0 && !l.closed {
			if l.sprung.cut {
				closeWrite(l.server)
				return
			}
			close(l.sprung.sprung)
			l.sprung = nil
		}
	}
}

// due reports whether s has something to pass on, and may.
func (p *Proxy) due(l *link, s *stream) bool {
	if p.frozen&s.dir != 0 || s.dir == Replies && l.mute {
		return false
	}
	return len(s.held) > 0 || s.eof
}

// spring looks for the request that is waited for in what is about to be forwarded, and silences the replies if it is there.
func (p *Proxy) spring(l *link) {
	if l.sprung != nil || p.trap == nil || !bytes.Contains(l.up.held, p.trap.part) {
		return
	}
	l.sprung, p.trap = p.trap, nil
	if !l.sprung.cut {
		p.freeze(Replies)
		return
	}
	l.mute = true
	p.interrupt(&l.down, Replies)
}

// writeHeld writes what s holds and keeps what an interruption left. p.mu is let go meanwhile.
func (p *Proxy) writeHeld(l *link, s *stream) {
	chunk := s.held
	s.held, s.writing = nil, true
	s.dst.SetWriteDeadline(time.Time{})
	p.mu.Unlock()
	n, err := s.dst.Write(chunk)
	p.mu.Lock()
	s.writing = false
	s.held = append(chunk[n:len(chunk):len(chunk)], s.held...)
	if timeout, ok := err.(net.Error); err != nil && !l.closed && !(ok && timeout.Timeout()) {
		p.reset(l)
	}
	p.changed.Broadcast()
}

// interrupt ends the write that is under way on s, if that is of direction d. p.mu is let go meanwhile.
func (p *Proxy) interrupt(s *stream, d Direction) {
	for s.dir&d != 0 && s.writing {
		s.dst.SetWriteDeadline(time.Unix(1, 0))
		p.changed.Wait()
	}
}

// finish passes on the end of a stream; when both have ended, so has the link.
func (p *Proxy) finish(l *link, s *stream) {
	closeWrite(s.dst)
	s.dst = nil
	if l.up.dst == nil && l.down.dst == nil {
		p.end(l)
		l.client.Close()
		l.server.Close()
	}
}

// reset ends a link at once on both sides, with all that is on its way.
func (p *Proxy) reset(l *link) {
	p.end(l)
	abort(l.client)
	abort(l.server)
}

func (p *Proxy) end(l *link) {
	l.closed = true
	delete(p.links, l)
	if l.mute {
		close(l.sprung.sprung)
	}
	p.changed.Broadcast()
}

// abort closes a connection so that the other side sees a reset.
func abort(conn net.Conn) {
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

func closeWrite(conn net.Conn) {
	conn.(*net.TCPConn).CloseWrite() // an error shows in the next read
}
