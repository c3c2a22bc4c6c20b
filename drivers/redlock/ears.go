package redlock

import (
	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// ear receives the messages of one node about the ends of holds, over a connection of its own. With a message a waiter asks at once, and
// otherwise at its next poll; nothing else depends on messages.
type ear struct {
	*redistopic.Listener
	option rueidis.ClientOption
	dialer *redisdial.Dialer
}

// earBuffer is enough for some messages, which are small.
const earBuffer = 4 << 10

func newEar(d *Driver, o rueidis.ClientOption) *ear {
	e := &ear{dialer: redisdial.New(o.DialCtxFn), option: o}
	e.option.DialCtxFn = e.dialer.Dial
	e.option.ReadBufferEachConn, e.option.WriteBufferEachConn = earBuffer, earBuffer
	plain := func() (plain, sharded bool) { return true, false }
	e.Listener = redistopic.New(redistopic.Options{Life: d.life.Lifecycle, Channel: channel, Kinds: plain, Connect: e.connect})
	return e
}

// connect makes a client for this connection alone, since a client for a node that is down does not exist.
func (e *ear) connect(string) (redistopic.Conn, bool) {
	client, err := rueidis.NewClient(e.option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return redistopic.Conn{}, false
	}
	c, _ := client.Dedicate()
	end := func() {
		c.Close()
		client.Close()
	}
	return redistopic.Conn{DedicatedClient: c, End: end}, true
}

// end ends the listening, and breaks the connection.
func (e *ear) end() {
	e.Close()
	e.dialer.End()
}
