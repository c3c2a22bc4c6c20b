package testenv

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// RedisError is an error that a Redis server answered with, as it stands: "WRONGTYPE Operation against …".
type RedisError string

func (e RedisError) Error() string { return string(e) }

// respConn speaks version 2 of the Redis protocol, one request at a time.
type respConn struct {
	net.Conn
	in *bufio.Reader
}

// dialRESP connects; the deadline of ctx holds for all that is asked over the connection.
func dialRESP(ctx context.Context, addr string, config *tls.Config) (*respConn, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if config != nil {
		config = config.Clone()
		config.ServerName = "127.0.0.1"
		conn = tls.Client(conn, config)
	}
	return newRESP(conn), nil
}

// dial connects; the deadline of ctx, or hangGuard if there is none, holds for all that is read and written.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(hangGuard)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func newRESP(conn net.Conn) *respConn { return &respConn{Conn: conn, in: bufio.NewReader(conn)} }

func (c *respConn) do(args ...string) (any, error) {
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c.Conn, request.String()); err != nil {
		return nil, err
	}
	answer, err := c.read()
	if err != nil {
		return nil, err
	}
	if err, ok := answer.(RedisError); ok {
		return nil, err
	}
	return answer, nil
}

func (c *respConn) read() (any, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, fmt.Errorf("empty line in an answer")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return RedisError(rest), nil
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	}
	n, err := strconv.Atoi(rest)
	if err != nil {
		return nil, fmt.Errorf("answer begins with %q", line)
	}
	switch {
	case n < 0:
		return nil, nil
	case kind == '$':
		text := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(c.in, text)
		return string(text[:n]), err
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = c.read(); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("answer begins with %q", line)
}
