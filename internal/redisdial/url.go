package redisdial

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

// The connection parameters of the clients of a driver.
const (
	ConnectFor = 2 * time.Second // for one attempt to connect, and then for the login
	PingEvery  = time.Second     // on an idle connection
	AnswerIn   = 3 * time.Second // otherwise the connection counts as dead
)

const (
	bufferSize = 64 << 10
	maxDB      = 1 << 20
)

// Prepare sets the drivers' requirements for each client, and the times that o
// does not specify.
func Prepare(o *rueidis.ClientOption) {
	o.DisableCache, o.DisableRetry = true, true
	o.PipelineMultiplex = -1 // one connection, which is as fast, and keeps requests in order

	// The library's own goroutines write and read from the beginning. Otherwise
	// callers do so at first, and Close can hang: if Close and the ping of an
	// idle connection begin at the same time, each of them expects the other to
	// start these goroutines.
	o.AlwaysPipelining, o.DisableAutoPipelining = true, false

	if o.Dialer.Timeout <= 0 {
		o.Dialer.Timeout = ConnectFor
	}
	if o.Dialer.KeepAlive <= 0 {
		// without pings, the goroutines would wait forever for a silent server
		o.Dialer.KeepAlive = PingEvery
	}
	if o.ConnWriteTimeout <= 0 {
		o.ConnWriteTimeout = AnswerIn
	}
}

// Defaults returns the options of a client that do not depend on its server.
func Defaults(clientName string) (o rueidis.ClientOption) {
	Prepare(&o)
	o.ClientName, o.ClientSetInfo = clientName, rueidis.DisableClientSetInfo
	o.ReadBufferEachConn, o.WriteBufferEachConn = bufferSize, bufferSize
	o.BlockingPoolCleanup = time.Minute
	return o
}

// ReadURL returns the options of a client for the user, the password, the TLS
// parameters and the database of a URL. It sets no address. The file of
// password_file is read for each connection.
func ReadURL(u *driver.URL, clientName string) (o rueidis.ClientOption, err error) {
	o = Defaults(clientName)
	if u.User != nil {
		o.Username = u.User.Username()
	}
	if password := u.Password(); password != nil && u.Has("password_file") {
		if _, err := password(); err != nil {
			return o, fmt.Errorf("%s URL: password_file: %w", u.Scheme, err)
		}
		user := o.Username
		o.AuthCredentialsFn = func(at rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			text, err := password()
			if err != nil { // treated like an unreachable server, because nothing was sent
				err = &net.OpError{Op: "dial", Net: "tcp", Addr: at.Address, Err: fmt.Errorf("password_file: %w", err)}
			}
			return rueidis.AuthCredentials{Username: user, Password: text}, err
		}
	} else if password != nil {
		o.Password, _ = password()
	}
	if o.TLSConfig, err = tlsurl.Read(u); err != nil {
		return o, err
	}
	path := strings.TrimPrefix(u.Path, "/")
	if path == "" {
		return o, nil
	}
	n, err := strconv.Atoi(path)
	if err != nil || n < 0 || n > maxDB || strconv.Itoa(n) != path {
		// The error omits the path, which may be part of a password with a
		// slash.
		return o, fmt.Errorf("%s URL: the path is not the number of a database", u.Scheme)
	}
	o.SelectDB = n
	return o, nil
}

// toSentinel marks the net.Dialer of connections to sentinels.
var toSentinel = new(net.Resolver)

// sentinelAddr is the address of a sentinel.
type sentinelAddr struct{ net.Addr }

// ToSentinels makes a client query sentinels for its server. The library also
// calls AuthCredentialsFn for connections to sentinels, which use the user and
// the password of s. A Dialer must make the connections.
func ToSentinels(o *rueidis.ClientOption, s rueidis.SentinelOption) {
	s.TLSConfig, s.Dialer = o.TLSConfig, o.Dialer
	s.Dialer.Resolver = toSentinel
	o.Sentinel = s
	ofServer := o.AuthCredentialsFn
	if ofServer == nil {
		return
	}
	o.AuthCredentialsFn = func(at rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		if _, is := at.Address.(sentinelAddr); is {
			return rueidis.AuthCredentials{Username: s.Username, Password: s.Password}, nil
		}
		return ofServer(at)
	}
}
