package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/cmd/dsync/internal/servers"
)

// reach connects to each host and returns the hosts that answer. If enough of
// them answer, the others are not a fault.
func (x *examination) reach(ctx context.Context, hosts []string, config *tls.Config) (reached []string) {
	for _, host := range hosts {
		limited, cancel := context.WithTimeout(ctx, x.connect)
		began := time.Now()
		conn, err := servers.Dial(limited, host, config)
		cancel()
		if err != nil {
			x.unreached(host, config != nil, err)
			continue
		}
		_ = conn.Close() // the check only tries the connection
		reached = append(reached, host)
		x.good(checkReach, "%s accepts a connection within %.2f ms", host, cli.Milliseconds(time.Since(began)))
		if config != nil {
			x.good("TLS", "the certificate of %s is valid for this name", host)
		}
	}
	if config == nil {
		x.inTheClear(reached)
	}
	enough := 1
	if x.url.Scheme == "redlock" {
		enough = len(hosts)/2 + 1
	}
	for i := range x.report.Findings {
		if f := &x.report.Findings[i]; f.Check == checkReach && f.Level == fault && len(reached) >= enough {
			f.Level = warning
		}
	}
	return reached
}

const checkReach = "reach"

// Sections of the documentation to which several checks refer.
const (
	seeTLS   = "docs/security.md#tls"
	seeReach = "docs/choosing.md#ten-lines-for-each"
)

// inTheClear is a finding about remote hosts without TLS.
func (x *examination) inTheClear(hosts []string) {
	for _, host := range hosts {
		if !isLocal(host) {
			x.bad(note, "TLS", "the connection to "+host+" is not encrypted, and carries the password", "use TLS unless the network is trusted", seeTLS)
		}
	}
}

func isLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasPrefix(host, "/") || ip != nil && ip.IsLoopback()
}

// unreached is a finding about an unreachable host.
func (x *examination) unreached(host string, secure bool, err error) {
	if x.certificate(host, err) {
		return
	}
	var op *net.OpError
	if secure && (!errors.As(err, &op) || op.Op != "dial") {
		x.bad(fault, "TLS", fmt.Sprintf("the TLS handshake with %s fails: %v", host, err),
			"use the port on which the server speaks TLS, or remove tls=true from the URL", seeTLS)
		return
	}
	var dns *net.DNSError
	cure := "is the server running, and does a firewall let this machine through? is the port correct?"
	if errors.As(err, &dns) {
		cure = "use a host name that can be resolved here"
	}
	x.bad(fault, checkReach, fmt.Sprintf("%s cannot be reached: %v", host, err), cure, seeReach)
}

// certificate adds a finding if an error concerns the server's certificate.
func (x *examination) certificate(host string, err error) bool {
	var name x509.HostnameError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		x.bad(fault, "TLS name", fmt.Sprintf("the certificate of %s is for %s, and not for %s", host, namesIn(name.Certificate), name.Host),
			"put a host in the URL that is in the certificate, set tls_server_name= (pglock: sslmode=verify-full and that host), or install a certificate for this name", seeTLS)
	case errors.As(err, &authority):
		x.bad(fault, "TLS", "the certificate of "+host+" was issued by an authority that is not trusted here",
			"set tls_ca=FILE (pglock: sslrootcert=FILE) to the certificate of that authority", seeTLS)
	case errors.As(err, &invalid):
		x.bad(fault, "TLS", fmt.Sprintf("the certificate of %s is not valid: %v", host, err), "install a new certificate if this one has expired", seeTLS)
	default:
		return false
	}
	return true
}

func namesIn(c *x509.Certificate) string {
	names := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no host"
	}
	return strings.Join(names, ", ")
}

// parseVersion returns the first two numbers of a version such as 3.4.1, or 0
// for a part that is not a number.
func parseVersion(version string) (major, minor int, known bool) {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, err1 == nil && err2 == nil
}

// clock is a reading of a server's clock, taken from one response.
func (x *examination) clock(host string, server, asked, answered time.Time, see string) {
	const allowed = time.Second
	doubt := answered.Sub(asked) / 2
	ahead := server.Sub(asked.Add(doubt))
	if ahead.Abs() <= allowed+doubt {
		x.good("clock", "the clock of %s is that of this machine, to %v", host, (ahead.Abs() + doubt).Round(time.Millisecond))
		return
	}
	word := "ahead of"
	if ahead < 0 {
		word = "behind"
	}
	x.bad(warning, "clock", fmt.Sprintf("the clock of %s is %v %s that of this machine", host, ahead.Abs().Round(time.Second), word),
		"find out which of the two is wrong, and let chrony or NTP correct it: a clock that is set while locks are held ends them early or keeps them longer",
		see)
}
