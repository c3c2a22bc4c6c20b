package testenv

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"sync"
	"testing"
)

// Front forwards connections to a server under another address, on a host such as 127.0.0.2, and returns that address. With certs it
// speaks TLS to clients, has the server certificate of certs, and asks for a client certificate of the same authority: for servers
// that do not speak TLS themselves.
func Front(tb testing.TB, host, target string, certs *Certificates) (addr string) {
	tb.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		tb.Fatal(err)
	}
	if addr = listener.Addr().String(); certs != nil {
		listener = tls.NewListener(listener, certs.server(tb))
	}
	f := &front{target: target, conns: map[net.Conn]bool{}}
	f.wg.Go(func() { f.accept(listener) }) // ends with the listener
	tb.Cleanup(func() {
		listener.Close()
		f.end()
		f.wg.Wait()
	})
	return addr
}

// server returns the TLS configuration of a server.
func (c *Certificates) server(tb testing.TB) *tls.Config {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.ServerCertFile, c.ServerKeyFile)
	if err != nil {
		tb.Fatal(err)
	}
	authority, err := os.ReadFile(c.CAFile)
	if err != nil {
		tb.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(authority)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
}

type front struct {
	target string
	wg     sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns map[net.Conn]bool
}

func (f *front) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.DialTimeout("tcp", f.target, hangGuard)
		if err != nil {
			client.Close()
			continue
		}
		if !f.keep(client, server) {
			return
		}
		f.wg.Go(func() { f.copy(server, client) }) // ends with either of the two
		f.wg.Go(func() { f.copy(client, server) })
	}
}

// keep notes connections that end closes, unless that was called.
func (f *front) keep(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		if f.ended {
			c.Close()
		} else {
			f.conns[c] = true
		}
	}
	return !f.ended
}

func (f *front) copy(dst, src net.Conn) {
	_, _ = io.Copy(dst, src) // an error ends the connection, and so does the end
	dst.Close()
	src.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, src)
}

func (f *front) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for c := range f.conns {
		c.Close()
	}
}
