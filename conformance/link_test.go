package conformance

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/wire"
)

// echo starts a server that echoes its input and reports the lines that it has
// received.
func echo(t *testing.T) (addr string, got <-chan string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	lines := make(chan string, 100) // more than a test sends
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { // ends when the wire is closed
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					lines <- line
					io.WriteString(c, line)
				}
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().String(), lines
}

func TestLinkOverAWire(t *testing.T) {
	const hang, late = 30 * time.Second, 20 * time.Millisecond
	addr, got := echo(t)
	w := new(wire.Wire)
	t.Cleanup(w.Close)
	link := LinkOver(w)
	dial := func() (send func(line string), receive func() error) {
		c, err := w.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(hang))
		in := bufio.NewReader(c)
		send = func(line string) {
			if _, err := io.WriteString(c, line); err != nil {
				t.Fatal(err)
			}
		}
		return send, func() error { _, err := in.ReadString('\n'); return err }
	}
	answered := func(receive func() error) {
		t.Helper()
		if err := receive(); err != nil {
			t.Fatal(err)
		}
		<-got
	}

	send, receive := dial()
	send("healthy\n")
	answered(receive)
	link.Hang()
	send("held\n")
	ctx, cancel := context.WithTimeout(t.Context(), late)
	defer cancel()
	if _, err := w.DialContext(ctx, "tcp", addr); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a dial while the link hangs: %v, want %v", err, context.DeadlineExceeded)
	}
	if len(got) > 0 {
		t.Errorf("%q arrived while the link hangs", <-got)
	}
	link.Delay(late) // replaces Hang
	answered(receive)
	start := time.Now()
	send("late\n")
	answered(receive)
	if d := time.Since(start); d < late {
		t.Errorf("answered after %v, want at least %v", d, late)
	}
	link.LoseAnswers()
	send("lost\n")
	if err := receive(); err == nil {
		t.Error("an answer arrived that should have been lost")
	}
	if line := <-got; line != "lost\n" {
		t.Errorf("the server got %q, want the request whose answer is lost", line)
	}
	link.Heal()
	send, receive = dial()
	send("again\n")
	answered(receive)
	link.Cut()
	if err := receive(); err == nil {
		t.Error("the connection was not cut")
	}
	if _, err := w.DialContext(t.Context(), "tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a dial while the link is cut: %v, want %v", err, syscall.ECONNREFUSED)
	}
	link.Heal()
	send, receive = dial()
	send("healed\n")
	answered(receive)
}
