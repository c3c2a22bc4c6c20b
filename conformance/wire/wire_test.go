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
	"slices"
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
		want := Traffic{Connections: 2, Requests: 1<<20 + 7, Replies: 1<<20 + 7}
		if got := w.Traffic(); got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
}

func TestWireDialerLooksLikeADirectConnection(t *testing.T) {
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
		t.Errorf("where nobody listens: %v, want %v", err, syscall.ECONNREFUSED)
	}
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
		dial().ask("2")
		if got := w.Traffic().Cut; got != 1 {
			t.Errorf("%d connections were cut, want 1", got)
		}
	})
}

func TestWireRefuse(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Refuse()
		a.ask("2")
		if _, err := w.DialContext(t.Context(), "tcp", s.addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want %v", err, syscall.ECONNREFUSED)
		}
		addr, err := w.Listen("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := net.Dial("tcp", addr); err == nil {
			defer c.Close()
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a connection to a proxy goes on")
			}
		}
		w.Heal()
		dial().ask("3")
		s.await(t, "1", "2", "3")
	})
}

func TestWireHoldRequests(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		a.ask("1")
		w.Hold(Requests)
		a.send("2")
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
				t.Errorf("delay of %d: answered after %v, want %v at least", c.d, got, c.want)
			}
		}
		w.Delay(Both, time.Hour)
		a.send("3")
		w.Cut()
		a.receiveEnd()
	})
}

// sizes is a connection that keeps the size of each write.
type sizes struct {
	*net.TCPConn
	mu   sync.Mutex
	size []int
}

func (c *sizes) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.size = append(c.size, len(b))
	c.mu.Unlock()
	return c.TCPConn.Write(b)
}

func TestWireSlice(t *testing.T) {
	s := newLineServer(t)
	var server *sizes
	w := Wire{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := net.Dial(network, addr)
		if err != nil {
			return nil, err
		}
		server = &sizes{TCPConn: c.(*net.TCPConn)}
		return server, nil
	}}
	defer w.Close()
	w.Slice(1)
	c, err := w.DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	a := &peer{t, c, bufio.NewReader(c)}
	a.ask("hello")
	server.mu.Lock()
	defer server.mu.Unlock()
	if got, want := server.size, []int{1, 1, 1, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("pieces of %v bytes, want %v", got, want)
	}
}

func TestWireHoldIsInForceWhenItReturns(t *testing.T) {
	onWire(t, func(t *testing.T, w *Wire, s *lineServer, dial func() *peer) {
		a := dial()
		var wg sync.WaitGroup
		wg.Go(func() { // ends with the connection
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
	for before := int64(-1); before != w.Traffic().Replies; time.Sleep(20 * ms) { // until nothing moves any more
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
		held, _ := w.HoldRequest("2")
		b.send("2")
		awaitClosed(t, held)
		w.Delay(Requests, time.Hour)
		c.send("3")
		w.Hold(Both)
		dialing := make(chan error)
		go func() {
			_, err := w.DialContext(context.Background(), "tcp", s.addr)
			dialing <- err
		}()
		addr, err := w.Listen("tcp", s.addr)
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
		if _, err := w.Listen("tcp", s.addr); !errors.Is(err, net.ErrClosed) {
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
			switch d := Direction(1 + rand.IntN(3)); rand.IntN(9) {
			case 0:
				w.Cut()
			case 1:
				w.Refuse()
			case 2:
				w.Hold(d)
			case 3:
				w.Drop(d)
			case 4:
				w.LoseReplies()
			case 5:
				w.Delay(d, ms)
			case 6:
				w.AfterRequest(fmt.Sprint(rand.IntN(8)))
			case 7:
				_, deliver := w.HoldRequest(fmt.Sprint(rand.IntN(8)))
				deliver()
			case 8:
				w.Slice(1 + rand.IntN(4))
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

// A connection that is being made when Refuse is called does not come about afterwards.
func TestWireRefusesWhatIsBeingConnected(t *testing.T) {
	s := newLineServer(t)
	w := Wire{}
	defer w.Close()
	w.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.Refuse()
		w.Cut()
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	if c, err := w.DialContext(t.Context(), "tcp", s.addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v and error %v, want that the connection is refused", c, err)
	}
	if n := w.Traffic().Connections; n != 0 {
		t.Errorf("%d connections were made, want none", n)
	}
}
