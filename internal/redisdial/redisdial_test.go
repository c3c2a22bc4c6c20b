package redisdial_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/redisdial"
)

// hangGuard is not an expectation of how long something takes.
const hangGuard = 30 * time.Second

// server is a listener that accepts connections and sends nothing.
type server struct {
	net.Listener
	accepted chan net.Conn
}

func newServer(t *testing.T) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{l, make(chan net.Conn, 10)}
	done := make(chan struct{})
	go func() { // ends when the listener is closed
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.accepted <- c
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		for len(s.accepted) > 0 {
			(<-s.accepted).Close()
		}
	})
	return s
}

func (s *server) dial(d *redisdial.Dialer, config *tls.Config) (net.Conn, error) {
	return d.Dial(context.Background(), s.Addr().String(), &net.Dialer{}, config)
}

// awaitEnd returns when the other side has closed its end of c.
func awaitEnd(t *testing.T, c net.Conn) {
	t.Helper()
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(hangGuard)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection is still open")
	}
}

func TestBreakLetsNewConnectionsBeMade(t *testing.T) {
	s := newServer(t)
	d := redisdial.New(nil)
	for want := range uint64(3) {
		if got := d.Made(); got != want {
			t.Errorf("Made: got %d, want %d", got, want)
		}
		if _, err := s.dial(d, nil); err != nil {
			t.Fatal(err)
		}
		c := <-s.accepted
		if !d.Connected() {
			t.Error("Connected: got false for an open connection")
		}
		d.Break()
		if d.Connected() {
			t.Error("Connected: got true for a broken connection")
		}
		awaitEnd(t, c)
	}
}

func TestEndBreaksConnectionsAndRefusesNewOnes(t *testing.T) {
	s := newServer(t)
	d := redisdial.New(nil)
	closed, err := s.dial(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, <-s.accepted)
	if _, err := s.dial(d, nil); err != nil {
		t.Fatal(err)
	}
	d.End()
	d.End()
	d.Wait()
	awaitEnd(t, <-s.accepted)
	if c, err := s.dial(d, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after End: got connection %v and error %v, want net.ErrClosed", c, err)
	}
}

// The server accepts the connection and sends nothing that would start TLS.
func TestEndEndsAttemptsThatAreUnderWay(t *testing.T) {
	s := newServer(t)
	d := redisdial.New(nil)
	failed := make(chan error, 1)
	go func() {
		_, err := s.dial(d, &tls.Config{ServerName: "nobody"})
		failed <- err
	}()
	c := <-s.accepted
	d.End()
	d.Wait()
	if err := <-failed; err == nil {
		t.Error("the attempt has succeeded")
	}
	awaitEnd(t, c)
}

// A dial function of the user may ignore its context and may finish after End.
func TestEndClosesWhatIsMadeAfterIt(t *testing.T) {
	s := newServer(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	d := redisdial.New(func(_ context.Context, addr string, nd *net.Dialer, _ *tls.Config) (net.Conn, error) {
		close(begun)
		<-goOn
		return nd.Dial("tcp", addr)
	})
	failed := make(chan error, 1)
	go func() {
		_, err := s.dial(d, nil)
		failed <- err
	}()
	<-begun
	d.End()
	close(goOn)
	d.Wait()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want net.ErrClosed", err)
	}
	awaitEnd(t, <-s.accepted)
}

// TestAnswerWithoutARequest connects to a server that has too many clients, and
// reports this before the first request. The library would panic on the
// response.
func TestAnswerWithoutARequest(t *testing.T) {
	const answer = "-ERR max number of clients reached\r\n"
	s := newServer(t)
	for _, asks := range []bool{false, true} {
		c, err := s.dial(redisdial.New(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if asks {
			if _, err := io.WriteString(c, "PING\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		server := <-s.accepted
		defer server.Close()
		if _, err := io.WriteString(server, answer); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		if asks && (string(b[:n]) != answer || err != nil) {
			t.Errorf("an answer to a request: got %q and %v", b[:n], err)
		}
		if !asks && (n != 0 || err == nil || !strings.Contains(err.Error(), "max number of clients")) {
			t.Errorf("an answer without a request: got %q and %v, want an error that quotes the answer", b[:n], err)
		}
	}
}
