package redisson

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/go-dsync/dsync/driver"
)

// readTLS returns nil for a plain connection.
func readTLS(u *driver.URL) (*tls.Config, error) {
	on := u.Bool("tls", false)
	ca, cert, key := u.Param("tls_ca", ""), u.Param("tls_cert", ""), u.Param("tls_key", "")
	name, insecure := u.Param("tls_server_name", ""), u.Bool("tls_insecure_skip_verify", false)
	if !on {
		if ca != "" || cert != "" || key != "" || name != "" || insecure {
			return nil, errors.New("redisson URL: tls_ and its kin need tls=true")
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, InsecureSkipVerify: insecure}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("redisson URL: tls_ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("redisson URL: tls_ca: no certificate in %s", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("redisson URL: tls_cert and tls_key go together")
	}
	if cert != "" {
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return nil, fmt.Errorf("redisson URL: tls_cert and tls_key: %w", err)
		}
		// Read anew for each connection: such files are replaced while a program runs.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}
	}
	return config, nil
}
