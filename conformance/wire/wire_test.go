package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestWireIsTransparent(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		a.ask("1")
		b.ask("2")
		a.ask("3")
		if err := a.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		s.await(t, "1", "2", "3", "EOF")
		if _, err := a.in.ReadByte(); err != io.EOF {
			t.Errorf("after the server closed the connection: %v, want %v", err, io.EOF)
		}
		long := strings.Repeat("x", 1<<20)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { // ends when the server has read it
			if _, err := io.WriteString(b, long+"\n"); err != nil {
				t.Error(err)
			}
		})
		b.receive(long)
		await(w, func() bool { return len(w.links) == 1 }) // a has ended
		want := Traffic{Connections: 2, Open: 1, Requests: 1<<20 + 7, Replies: 1<<20 + 7}
		if got := w.Traffic(); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
}

func TestWireLooksLikeADirectConnection(t *testing.T) {
	s := newLineServer(t)
	var w Wire
	defer w.Close()
	c, err := w.DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.RemoteAddr().String(); got != s.addr {
		t.Errorf("connected to %s, want %s", got, s.addr)
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	if _, err := w.DialContext(t.Context(), "tcp", nobody.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("where no server listens: %v, want %v", err, syscall.ECONNREFUSED)
	}
	addr, err := w.Listen(nobody.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	receiveReset(t, addr)
}

func TestWireOverAUnixSocket(t *testing.T) {
	var w Wire
	defer w.Close()
	c, server := twoEnds(t, &w, "unix", t.TempDir()+"/s")
	io.WriteString(c, "hello")
	c.Close()
	if got, err := io.ReadAll(server); string(got) != "hello" || err != nil {
		t.Errorf("the server got %q, %v, want hello and the end", got, err)
	}
}

func TestWireCut(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Cut()
		a.receiveEnd()
		s.await(t, "1", "reset")
		if _, err := w.DialContext(t.Context(), "tcp", s.addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want %v", err, syscall.ECONNREFUSED)
		}
		addr, err := w.Listen(s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection to a proxy: %v, want %v", err, syscall.ECONNREFUSED)
		}
		w.Heal()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		await(w, func() bool { return w.traffic.Connections == 2 })
		c.Close()
		dial().ask("2")
		await(w, func() bool { return len(w.links) == 1 })
		if got, want := w.Traffic(), (Traffic{Connections: 3, Open: 1, Cut: 1, Requests: 4, Replies: 4}); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
}

// receiveReset connects to a proxy that breaks the connection.
func receiveReset(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(hang))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to the proxy: %v, want %v", err, syscall.ECONNRESET)
	}
}

// A process that is just being started has copies of all sockets, including
// those that Cut closes and Heal opens again.
func TestWireHealsWhileProcessesAreStarted(t *testing.T) {
	s := newLineServer(t)
	var w Wire
	defer w.Close()
	addr, err := w.Listen(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	starting.Go(func() {
		for ctx.Err() == nil {
			if err := exec.Command(os.Args[0], "-test.run=^$").Run(); err != nil {
				t.Error(err)
			}
		}
	})
	for range 200 {
		w.Cut()
		w.Heal()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	cancel()
	starting.Wait()
}

// A connection that is being made when Cut is called is not established
// afterwards.
func TestWireCutRefusesWhatIsBeingConnected(t *testing.T) {
	for name, cut := range map[string]func(w *Wire){
		"cut":    (*Wire).Cut,
		"healed": func(w *Wire) { w.Cut(); w.Heal() },
	} {
		t.Run(name, func(t *testing.T) {
			var w Wire
			defer w.Close()
			begun := w.cutsSoFar()
			cut(&w)
			if err := w.connectable(t.Context(), begun); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("before it connects to the server: %v, want %v", err, syscall.ECONNREFUSED)
			}
			client, inner := net.Pipe()
			_, outer := net.Pipe()
			if err := w.join(inner, outer, begun); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("after it has connected to the server: %v, want %v", err, syscall.ECONNREFUSED)
			}
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the client's end: %v, want %v", err, io.EOF)
			}
		})
	}
}

func TestWireHoldRequests(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Hold(Requests)
		a.send("2")
		await(w, func() bool { return w.traffic.Held == 2 })
		a.receiveNothing()
		s.await(t, "1")
		w.Heal()
		a.receive("2")
		if got := w.Traffic().Held; got != 2 {
			t.Errorf("%d bytes were held, want 2", got)
		}
	})
}

func TestWireHoldReplies(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		w.Hold(Replies)
		a.send("1")
		s.await(t, "1")
		a.receiveNothing()
		w.Heal()
		a.receive("1")
	})
}

func TestWireDeliversLateWhatAClosedConnectionSent(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Hold(Both)
		a.send("2")
		a.Close()
		s.await(t, "1")
		w.Heal()
		s.await(t, "1", "2", "EOF")
	})
}

func TestWireNeverDeliversWhatWasHeldWhenItIsCut(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Hold(Both)
		a.send("2")
		w.Cut()
		a.receiveEnd()
		w.Heal()
		s.await(t, "1", "reset")
	})
}

func TestWireHoldStopsTheMakingOfConnections(t *testing.T) {
	s := newLineServer(t)
	var w Wire
	defer w.Close()
	w.Hold(Replies)
	ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
	defer cancel()
	if _, err := w.DialContext(ctx, "tcp", s.addr); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial: %v, want %v", err, context.DeadlineExceeded)
	}
	dialed := make(chan error)
	go func() {
		_, err := w.DialContext(t.Context(), "tcp", s.addr)
		dialed <- err
	}()
	w.Heal()
	if err := <-dialed; err != nil {
		t.Errorf("dial until Heal: %v", err)
	}
}

func TestWireDropRequests(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		a.ask("1")
		b.ask("2")
		w.Drop(Requests)
		a.send("3")
		await(w, func() bool { return w.traffic.Dropped == 2 })
		a.receiveNothing()
		w.Heal()
		a.receiveEnd()
		s.await(t, "1", "2", "reset")
		b.ask("4") // nothing of it had vanished
		if got := w.Traffic().Dropped; got != 2 {
			t.Errorf("%d bytes vanished, want 2", got)
		}
	})
}

func TestWireDropReplies(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Drop(Replies)
		a.send("2")
		a.send("3")
		s.await(t, "1", "2", "3")
		await(w, func() bool { return w.traffic.Dropped == 4 })
		a.receiveNothing()
		w.Heal()
		a.receiveEnd()
	})
}

func TestWireDropHidesTheEndOfAConnection(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Drop(Both)
		a.Close()
		s.await(t, "1")
		w.Heal()
		s.await(t, "1", "EOF")
	})
}

func TestWireStrand(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Strand()
		a.send("2")
		await(w, func() bool { return w.traffic.Dropped == 2 })
		a.receiveNothing()
		b := dial()
		b.ask("3")
		s.await(t, "1", "3")
		w.Heal()
		a.receiveEnd()
		s.await(t, "1", "3", "reset")
		b.ask("4")
	})
}

func TestWireRedirect(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		next := newLineServer(t)
		a := dial()
		a.ask("1")
		w.Redirect(s.addr, next.addr)
		dial().ask("2")
		a.ask("3")
		s.await(t, "1", "3")
		next.await(t, "2")
	})
}

func TestWireLoseReplies(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b := dial(), dial()
		a.ask("1")
		b.ask("2")
		w.LoseReplies()
		a.send("3")
		a.receiveEnd()
		s.await(t, "1", "2", "3", "EOF")
		w.Heal()
		b.ask("4")
	})
}

func TestWireDelay(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		for _, c := range []struct {
			d    Direction
			want time.Duration
		}{{Requests, 20 * ms}, {Replies, 20 * ms}, {Both, 40 * ms}} {
			w.Heal()
			w.Delay(c.d, 20*ms)
			start := time.Now()
			a.ask("2")
			if got := time.Since(start); got < c.want {
				t.Errorf("delay of %d: answered after %v, want at least %v", c.d, got, c.want)
			}
		}
		w.Delay(Both, time.Hour)
		a.send("3")
		w.Cut()
		a.receiveEnd()
	})
}

func TestWireGarble(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		const line = "a line that is long enough to be hit"
		replies := map[string]bool{}
		for range 2 {
			a, idle := dial(), dial()
			idle.ask("idle")
			before := w.Traffic().Garbled
			w.Garble(1, 4)
			a.send(line)
			got := make([]byte, len(line)+1)
			if _, err := io.ReadFull(a.in, got); err != nil {
				t.Fatal(err)
			}
			var changed int64
			for i := range got {
				if got[i] != (line + "\n")[i] {
					changed++
				}
			}
			if n := w.Traffic().Garbled - before; changed == 0 || n != changed {
				t.Errorf("%d bytes changed, but %d are counted; want the same number, above 0", changed, n)
			}
			replies[string(got)] = true
			w.Heal()
			a.receiveEnd()
			idle.ask("idle") // nothing of it was changed
		}
		if len(replies) != 1 {
			t.Errorf("one seed changed a reply in different ways: %v", replies)
		}
	})
}

func TestWireHoldIsInForceWhenItReturns(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		var wg sync.WaitGroup
		wg.Go(func() { // ends when the connection is closed
			for {
				if _, err := io.WriteString(a, "x\n"); err != nil {
					return
				}
			}
		})
		wg.Go(func() { io.Copy(io.Discard, a) })
		for range 100 {
			w.Hold(Both)
			before := w.Traffic()
			for range 100 {
				if after := w.Traffic(); after.Requests != before.Requests || after.Replies != before.Replies {
					t.Fatalf("bytes passed after Hold: %+v, then %+v", before, after)
				}
			}
			w.Heal()
			for start := w.Traffic(); w.Traffic().Replies == start.Replies; {
				time.Sleep(time.Microsecond)
			}
		}
		w.Cut()
		wg.Wait()
	})
}

func TestWireHoldReturnsWhileThePeerDoesNotRead(t *testing.T) {
	want := make([]byte, 16<<20) // more than the buffers on the way take
	for i := range want {
		want[i] = byte(i * i >> 8)
	}
	var w Wire
	defer w.Close()
	c, server := twoEnds(t, &w, "tcp", "127.0.0.1:0")
	var wg sync.WaitGroup
	wg.Go(func() { // ends when all is read, or the connection closed
		server.Write(want)
		server.Close()
	})
	defer wg.Wait()
	defer server.Close()
	for before := int64(-1); before != w.Traffic().Replies; time.Sleep(20 * ms) { // until no more bytes move
		before = w.Traffic().Replies
	}
	for range 20 {
		w.Hold(Both)
		w.Heal()
	}
	if got, err := io.ReadAll(c); !bytes.Equal(got, want) || err != nil {
		t.Errorf("received %d bytes, %v, which are not the %d that were sent", len(got), err, len(want))
	}
}

func TestWirePassesOnThatTheServerBrokeTheConnection(t *testing.T) {
	var w Wire
	defer w.Close()
	c, server := twoEnds(t, &w, "tcp", "127.0.0.1:0")
	w.Hold(Replies)
	reset(server)
	c.SetReadDeadline(time.Now().Add(10 * ms))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("while replies are held: %v, want %v", err, os.ErrDeadlineExceeded)
	}
	w.Heal()
	c.SetReadDeadline(time.Now().Add(hang))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after Heal: %v, want %v", err, syscall.ECONNRESET)
	}
}

func TestWireClose(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a, b, c := dial(), dial(), dial()
		a.ask("1")
		w.LoseReply("2")
		b.send("2")
		w.Delay(Requests, time.Hour)
		c.send("3")
		w.Hold(Both)
		dialing := make(chan error)
		go func() {
			_, err := w.DialContext(context.Background(), "tcp", s.addr)
			dialing <- err
		}()
		addr, err := w.Listen(s.addr)
		if err != nil {
			t.Fatal(err)
		}
		waiting, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer waiting.Close()
		w.Close() // returns when nothing is left
		for _, p := range []*peer{a, b, c} {
			p.receiveEnd()
		}
		if err := <-dialing; !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial while closing: %v, want %v", err, net.ErrClosed)
		}
		if _, err := w.DialContext(t.Context(), "tcp", s.addr); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial after Close: %v, want %v", err, net.ErrClosed)
		}
		if _, err := w.Listen(s.addr); !errors.Is(err, net.ErrClosed) {
			t.Errorf("listen after Close: %v, want %v", err, net.ErrClosed)
		}
		w.Close()
	})
}

func TestWireUnderManyDisturbances(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					c, err := w.DialContext(ctx, "tcp", s.addr)
					if err != nil {
						continue
					}
					in := bufio.NewReader(c)
					for {
						c.SetDeadline(time.Now().Add(20 * ms))
						line := fmt.Sprintf("%d %d\n", n, i)
						if _, err := io.WriteString(c, line); err != nil {
							break
						}
						got, err := in.ReadString('\n')
						if err == nil && got != line {
							t.Errorf("received %q, want %q", got, line)
						}
						if err != nil || got != line || ctx.Err() != nil {
							break
						}
					}
					c.Close()
				}
			})
		}
		for range 150 {
			switch d := Direction(1 + rand.IntN(3)); rand.IntN(7) {
			case 0:
				w.Cut()
			case 1:
				w.Hold(d)
			case 2:
				w.Drop(d)
			case 3:
				w.LoseReplies()
			case 4:
				w.Delay(d, ms)
			case 5:
				w.LoseReply(fmt.Sprint(rand.IntN(8)))
			case 6:
				w.HoldReply(fmt.Sprint(rand.IntN(8)))
			}
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			if rand.IntN(3) == 0 {
				w.Heal()
			}
		}
		w.Heal()
		cancel()
		wg.Wait()
		dial().ask("healthy")
		if got := w.Traffic(); got.Cut == 0 || got.Held == 0 || got.Dropped == 0 {
			t.Errorf("not much happened: %+v", got)
		}
	})
}
