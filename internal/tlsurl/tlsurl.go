// Package tlsurl reads the TLS parameters of backend URLs. All drivers use them
// except pglock, whose URLs have the parameters of libpq.
package tlsurl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/go-dsync/dsync/driver"
)

// Read returns the TLS configuration of a URL, or nil for a plain connection.
// Parameters:
//
//	tls=true                       encrypt, and verify the server's certificate against the system's CA certificates
//	tls_ca=                        or against those in this PEM file
//	tls_cert=, tls_key=            PEM files with the client's own certificate, read again for each connection
//	tls_server_name=               the name that the server's certificate must have, if it is not that of the host
//	tls_insecure_skip_verify=true  accept any certificate
func Read(u *driver.URL) (*tls.Config, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s URL: "+format, append([]any{u.Scheme}, args...)...)
	}
	on := u.Bool("tls", false)
	ca, cert, key := u.Param("tls_ca", ""), u.Param("tls_cert", ""), u.Param("tls_key", "")
	name, insecure := u.Param("tls_server_name", ""), u.Bool("tls_insecure_skip_verify", false)
	if !on {
		for _, given := range []struct {
			parameter string
			is        bool
		}{{"tls_ca", ca != ""}, {"tls_cert", cert != ""}, {"tls_key", key != ""}, {"tls_server_name", name != ""}, {"tls_insecure_skip_verify", insecure}} {
			if given.is {
				return nil, bad("parameter %s needs tls=true", given.parameter)
			}
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, InsecureSkipVerify: insecure}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, bad("tls_ca: %w", unnamed(err))
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, bad("tls_ca: no certificate in this file")
		}
	}
	if (cert == "") != (key == "") {
		return nil, bad("tls_cert and tls_key go together")
	}
	if cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, bad("tls_cert and tls_key: %w", unnamed(err))
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return config, nil
}

// unnamed returns the reason why a file cannot be read. It omits the name of
// the file, because a user may have passed a key instead of a file name.
func unnamed(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
