package testenv

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"

	"github.com/go-dsync/dsync/conformance/wire"
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
	w := new(wire.Wire)
	tb.Cleanup(w.Close)
	if err := w.Serve(listener, target); err != nil {
		tb.Fatal(err)
	}
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
