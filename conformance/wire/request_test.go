package wire

import (
	"io"
	"testing"
)

func TestWireAfterRequest(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		a.ask("1")
		b.ask("2")
		cut := w.AfterRequest("lock")
		a.ask("3")
		b.ask("4")
		if hasClosed(cut) {
			t.Error("something was cut before the request")
		}
		a.send("please lock it")
		awaitClosed(t, cut)
		a.receiveEnd()
		s.await(t, "1", "2", "3", "4", "please lock it", "EOF")
		b.ask("please lock it") // it happens once
		dial().ask("5")
		if got := w.Traffic(); got.Cut != 1 || got.Dropped != 15 {
			t.Errorf("%d connections were cut and %d bytes vanished, want 1 and 15", got.Cut, got.Dropped)
		}
	})
}

func TestWireAfterRequestInPieces(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		w.Slice(1)
		cut := w.AfterRequest("lock it")
		a := dial()
		a.ask("lock that")
		for _, piece := range []string{"lo", "ck", " i", "t now\n"} {
			if _, err := io.WriteString(a, piece); err != nil {
				t.Fatal(err)
			}
		}
		awaitClosed(t, cut)
		a.receiveEnd()
		s.await(t, "lock that", "lock it now", "EOF")
	})
}

func TestWireAfterAnyRequest(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		cut := w.AfterRequest("")
		a.send("2")
		awaitClosed(t, cut)
		a.receiveEnd()
		s.await(t, "1", "2", "EOF")
	})
}

func TestWireAfterRequestOfAClientThatGivesUp(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		cut := w.AfterRequest("1")
		w.Hold(Replies)
		a.send("1")
		s.await(t, "1")
		if hasClosed(cut) {
			t.Error("the reply was lost, which is held")
		}
		w.Cut()
		awaitClosed(t, cut)
	})
}

func TestWireHoldRequest(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		a.ask("1")
		held, deliver := w.HoldRequest("lock")
		a.ask("2")
		a.send("lock")
		awaitClosed(t, held)
		a.send("3")
		b.ask("unlock")
		s.await(t, "1", "2", "unlock")
		a.Close()
		b.ask("4")
		deliver()
		s.await(t, "1", "2", "unlock", "4", "lock", "3", "EOF")
		b.ask("lock") // it happens once
	})
}

func TestWireHealDeliversAHeldRequestAndForgetsTheRest(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		held, deliver := w.HoldRequest("lock")
		never := w.AfterRequest("other")
		a.send("lock")
		awaitClosed(t, held)
		w.Heal()
		a.receive("lock")
		deliver()
		a.ask("other")
		if hasClosed(never) {
			t.Error("a request was cut off after Heal")
		}
	})
}
