package wire

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestWireLoseReply(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		a.ask("1")
		b.ask("2")
		lost := w.LoseReply("lock")
		a.ask("3")
		b.ask("4")
		if hasClosed(lost) {
			t.Error("something was lost before the request")
		}
		a.send("please lock it")
		awaitClosed(t, lost)
		a.receiveEnd()
		s.await(t, "1", "2", "3", "4", "please lock it", "EOF")
		b.ask("please lock it") // it happens once
		dial().ask("5")
		if got := w.Traffic(); got.Cut != 1 || got.Dropped != 15 {
			t.Errorf("%d connections were cut and %d bytes vanished, want 1 and 15", got.Cut, got.Dropped)
		}
	})
}

func TestWireLoseReplyToTheLastOfManyRequests(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		const many = 1000
		lost := w.LoseReply("last")
		a := dial()
		a.send(strings.Repeat("first\n", many) + "last")
		awaitClosed(t, lost)
		s.mu.Lock()
		got := len(s.got)
		s.mu.Unlock()
		if want := many + 2; got != want { // including its EOF
			t.Errorf("the server had carried out %d requests when the reply was lost, want %d", got, want)
		}
		a.receiveEnd()
	})
}

func TestWireLoseReplyToARequestInPieces(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		lost := w.LoseReply("lock it")
		a := dial()
		a.ask("lock that")
		sent := w.Traffic().Requests
		for _, piece := range []string{"lo", "ck", " i", "t now\n"} {
			if _, err := io.WriteString(a, piece); err != nil {
				t.Fatal(err)
			}
			sent += int64(len(piece))
			await(w, func() bool { return w.traffic.Requests == sent })
		}
		awaitClosed(t, lost)
		a.receiveEnd()
		s.await(t, "lock that", "lock it now", "EOF")
	})
}

func TestWireLoseReplyToAnyRequest(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		lost := w.LoseReply("")
		a.send("2")
		awaitClosed(t, lost)
		a.receiveEnd()
		s.await(t, "1", "2", "EOF")
	})
}

// The request is carried out although its client has hung up before the reply.
func TestWireLoseReplyToAClientThatHangsUp(t *testing.T) {
	for name, hangUp := range map[string]func(a *peer){
		"close": func(a *peer) { a.Close() },
		"reset": func(a *peer) { reset(a.Conn) },
	} {
		t.Run(name, func(t *testing.T) {
			onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
				a := dial()
				s.answers.Lock()
				a.send("1")
				s.await(t, "1")
				lost := w.LoseReply("2")
				a.send("2")
				await(w, func() bool { return w.traffic.Requests == 4 })
				hangUp(a)
				await(w, func() bool {
					for l := range w.links {
						return l.requests.over
					}
					return true
				})
				s.answers.Unlock()
				awaitClosed(t, lost)
				s.await(t, "1", "2", "EOF")
			})
		})
	}
}

func TestWireLoseReplyThatIsHeldAndCut(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		lost := w.LoseReply("1")
		w.Hold(Replies)
		a.send("1")
		s.await(t, "1")
		if hasClosed(lost) {
			t.Error("the reply was lost instead of held")
		}
		w.Cut()
		awaitClosed(t, lost)
	})
}

func TestWireHoldReply(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		passed := w.HoldReply("lock")
		a.ask("1")
		b.ask("2")
		if hasClosed(passed) {
			t.Error("something was held before the request")
		}
		a.send("lock")
		awaitClosed(t, passed)
		s.await(t, "1", "2", "lock")
		b.send("3")
		s.await(t, "1", "2", "lock", "3")
		a.receiveNothing()
		b.receiveNothing()
		w.Heal()
		a.receive("lock")
		b.receive("3")
		a.ask("lock") // it happens once

		passed = w.HoldReply("lock")
		b.send("lock")
		awaitClosed(t, passed)
		w.Cut()
		b.receiveEnd()
	})
}

func TestWireHoldRequest(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		held := w.HoldRequest("lock")
		a.ask("1")
		if hasClosed(held) {
			t.Error("something was held before the request")
		}
		a.send("lock")
		awaitClosed(t, held)
		a.send("2")
		b.ask("lock") // it happens once
		dial().ask("3")
		a.receiveNothing()
		s.await(t, "1", "lock", "3")
		w.Heal()
		a.receive("lock")
		a.receive("2")
		s.await(t, "1", "lock", "3", "lock", "2")
		a.ask("4")

		held = w.HoldRequest("")
		a.send("5")
		awaitClosed(t, held)
		w.Cut()
		a.receiveEnd()
		w.Heal()
		dial().ask("6")
		s.mu.Lock()
		defer s.mu.Unlock()
		if slices.Contains(s.got, "5") {
			t.Error("a request arrived that was held when the connection was cut")
		}
	})
}

// The request arrives although its client has already hung up.
func TestWireHoldRequestOfAClientThatHangsUp(t *testing.T) {
	for name, hangUp := range map[string]func(a *peer){
		"close": func(a *peer) { a.Close() },
		"reset": func(a *peer) { reset(a.Conn) },
	} {
		t.Run(name, func(t *testing.T) {
			onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
				a := dial()
				held := w.HoldRequest("1")
				a.send("1")
				awaitClosed(t, held)
				hangUp(a)
				dial().ask("2")
				w.Heal()
				s.await(t, "2", "1", "EOF")
			})
		})
	}
}

func TestWireHealForgetsTheRequest(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		replaced := w.HoldReply("lock")
		never := w.LoseReply("lock")
		w.Heal()
		a.ask("lock")
		if hasClosed(replaced) || hasClosed(never) {
			t.Error("a reply was disturbed after Heal")
		}
	})
}
