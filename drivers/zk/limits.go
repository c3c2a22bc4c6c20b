package zk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// errNoSession: a session ended before its server got to grant the session, as the shortest sessions may on a busy server.
var errNoSession = errors.New("the server gives no session")

// limits asks the first server that answers for the shortest and the longest timeout of a session. No request tells them,
// so two sessions are made and ended.
func (d *Driver) limits(ctx context.Context) (shortest, longest time.Duration, err error) {
	var failed error
	for failures := 0; ; failures++ {
		host := d.hosts[failures%len(d.hosts)]
		if shortest, err = d.askLimit(ctx, host, 1); err == nil {
			longest, err = d.askLimit(ctx, host, math.MaxInt32)
		}
		if err == nil {
			return shortest, longest, nil
		}
		if ctx.Err() == nil {
			failed = fmt.Errorf("%s: %w", host, err)
		}
		busy := errors.Is(err, io.EOF) || errors.Is(err, errNoSession)
		if failures+1 >= len(d.hosts) && !busy || !d.life.Sleep(ctx, 20*time.Millisecond) {
			if failed == nil {
				failed = err
			}
			return 0, 0, withCause(ctx, driver.ErrUnavailable, failed)
		}
	}
}

// askLimit returns the timeout in milliseconds that a server gives where another is asked for.
func (d *Driver) askLimit(ctx context.Context, host string, ask int32) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionFor)
	defer cancel()
	c, err := d.options.Dial(ctx, "tcp", host)
	if err == nil && d.options.TLS != nil {
		c, err = secure(ctx, c, host, d.options.TLS)
	}
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	granted, err := handshake(c, ask)
	if ended := ctx.Err(); err != nil && ended != nil {
		err = ended
	}
	return granted, err
}

func handshake(c net.Conn, ask int32) (time.Duration, error) {
	// Version, last transaction, timeout, session, password.
	hello := binary.BigEndian.AppendUint32(nil, 4+8+4+8+4+16)
	hello = binary.BigEndian.AppendUint32(hello, 0)
	hello = binary.BigEndian.AppendUint64(hello, 0)
	hello = binary.BigEndian.AppendUint32(hello, uint32(ask))
	hello = binary.BigEndian.AppendUint64(hello, 0)
	hello = binary.BigEndian.AppendUint32(hello, 16)
	hello = append(hello, make([]byte, 16)...)
	// The request to end the session comes along, so that the session does not
	// outlast the connection by its timeout if ctx ends before the answer.
	end := int32(opClose)
	hello = binary.BigEndian.AppendUint32(hello, 8)
	hello = binary.BigEndian.AppendUint32(hello, 1)
	hello = binary.BigEndian.AppendUint32(hello, uint32(end))
	if _, err := c.Write(hello); err != nil {
		return 0, err
	}
	var answer [12]byte // its length, version, timeout
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return 0, err
	}
	if size := binary.BigEndian.Uint32(answer[:]); size > maxWelcome {
		return 0, fmt.Errorf("%w: no ZooKeeper server", errAnswer)
	}
	granted := int32(binary.BigEndian.Uint32(answer[8:]))
	if granted <= 0 {
		return 0, errNoSession
	}
	_, err := io.Copy(io.Discard, c) // the server hangs up when the session has ended
	if err != nil {
		return 0, err
	}
	return time.Duration(granted) * time.Millisecond, nil
}
