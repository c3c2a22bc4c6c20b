package testenv

import "net"

// OnClose returns conn as a connection whose Close calls closed first, each time.
func OnClose(conn net.Conn, closed func()) net.Conn { return &closing{conn, closed} }

type closing struct {
	net.Conn
	closed func()
}

func (c *closing) Close() error {
	c.closed()
	return c.Conn.Close()
}
