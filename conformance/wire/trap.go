package wire

import "bytes"

// trap waits for a request.
type trap struct {
	match []byte
	hold  bool // the replies; otherwise the reply is lost
	back  bool // the request is held back, so neither field above applies
	// closed when the request has passed (hold), was carried out (lose) or is
	// held (back), or when its connection has ended
	sprung chan struct{}
}

// LoseReply waits for the next request that contains match, lets it pass, and
// breaks its connection when the reply arrives. The request is carried out,
// even if the client hangs up, but the client is not notified. Other
// connections, and later ones, are not affected. The channel is closed when the
// server has also ended the connection, and so has carried out all its
// requests.
//
// The next bytes on the connection count as the reply. If several requests
// share a connection, as in HTTP/2, these bytes may be something else. A server
// that abandons its work when a client hangs up may then abandon the request.
// In such cases, use HoldReply.
//
// A request may be sent in pieces. Under TLS only an empty match, which matches
// any request, is useful. The Wire waits for one request at a time, so
// LoseReply, HoldReply and HoldRequest forget an earlier match.
func (w *Wire) LoseReply(match string) <-chan struct{} {
	return w.set(&trap{match: []byte(match)})
}

// HoldReply waits for the next request that contains match, as LoseReply does,
// and lets it pass. It holds the replies on all connections from just before
// that request, as Hold does. The channel is closed when the request has
// passed. The test can then wait until the server shows the effect of the
// request, and continue with Heal (the reply is late), or with Cut before Heal
// (the reply is lost).
func (w *Wire) HoldReply(match string) <-chan struct{} {
	return w.set(&trap{match: []byte(match), hold: true})
}

// HoldRequest waits for the next request that contains match, and holds it back
// until Heal, together with all later requests on its connection. Requests on
// other connections overtake it. The request arrives at Heal even if its client
// has closed the connection by then. If the request must never arrive, call Cut
// before Heal. The channel is closed when the request is held.
func (w *Wire) HoldRequest(match string) <-chan struct{} {
	return w.set(&trap{match: []byte(match), back: true})
}

func (w *Wire) set(t *trap) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.sprung = make(chan struct{})
	w.trap = t
	return t.sprung
}

// spring searches the client's bytes for the request of the trap.
func (l *link) spring(b []byte) {
	w := l.wire
	w.mu.Lock()
	t := w.trap
	if t == nil || l.trap != nil {
		l.seen = nil
		w.mu.Unlock()
		return
	}
	l.seen = append(l.seen[max(0, len(l.seen)-max(0, len(t.match)-1)):], b...)
	var stopped []*link
	if found := bytes.Contains(l.seen, t.match); found && t.back {
		w.trap, l.seen = nil, nil
		l.stuck, l.overtaken = true, true
		close(t.sprung)
	} else if found {
		w.trap, l.trap, l.seen, l.sent = nil, t, nil, false
		if t.hold {
			w.faults.hold |= Replies
			stopped = w.all()
		}
	}
	w.mu.Unlock()
	flush(stopped, Replies)
}

// passed records that all bytes that the client has sent so far have passed.
func (l *link) passed() {
	w := l.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.sent = true; l.trap != nil && l.trap.hold {
		l.release()
	}
	w.notify()
}

// release notifies the test that its trap was sprung. wire.mu is held.
func (l *link) release() {
	if l.trap != nil {
		close(l.trap.sprung)
		l.trap = nil
	}
}
