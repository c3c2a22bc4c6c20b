package testenv

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

// reflector echoes the data that it receives.
func reflector(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends when the connection is closed
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func checkReflected(t *testing.T, c net.Conn) error {
	t.Helper()
	defer c.Close()
	if _, err := io.WriteString(c, "hello"); err != nil {
		return err
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != "hello" {
		t.Errorf("got %q, want the data that was sent", got)
	}
	return nil
}

func TestFrontForwards(t *testing.T) {
	c, err := net.Dial("tcp", Front(t, "127.0.0.1", reflector(t), nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkReflected(t, c); err != nil {
		t.Error(err)
	}
}

func TestFrontAsksForACertificate(t *testing.T) {
	certs := NewCertificates(t)
	addr := Front(t, "127.0.0.1", reflector(t), certs)
	dial := func(config *tls.Config) error {
		c, err := tls.Dial("tcp", addr, config)
		if err != nil {
			return err
		}
		return checkReflected(t, c)
	}
	if err := dial(certs.Client); err != nil {
		t.Error(err)
	}
	var wrongName *tls.CertificateVerificationError
	other := certs.Client.Clone()
	other.ServerName = "example.com"
	if err := dial(other); !errors.As(err, &wrongName) {
		t.Errorf("another name: got %v, want a tls.CertificateVerificationError", err)
	}
	none := certs.Client.Clone()
	none.Certificates = nil
	if err := dial(none); err == nil {
		t.Error("without a client certificate: got no error")
	}
}
