package redisson

import (
	"context"

	"github.com/go-dsync/dsync/internal/redistopic"
)

// newTopics returns what listens to the channels of names that are waited for.
func newTopics(d *Driver) *redistopic.Listener {
	o := redistopic.Options{
		Life:    d.life,
		Channel: func(name string) string { return prefixName(channelPrefix, name) },
		Kinds: func() (plain, sharded bool) {
			return d.checked.pubSub != PubSubSharded, d.checked.pubSub != PubSubPlain
		},
		Connect: d.connectTo,
	}
	if d.cluster {
		o.Shards = shards{d.nodes}
	}
	return redistopic.New(o)
}

// connectTo connects to a node for subscriptions.
func (d *Driver) connectTo(node string) (redistopic.Conn, bool) {
	client := d.client
	if node != "" {
		if client = client.Nodes()[node]; client == nil {
			return redistopic.Conn{}, false
		}
	}
	c, _ := client.Dedicate()
	return redistopic.Conn{DedicatedClient: c, End: c.Close}, true
}

// shards is a topology as package redistopic asks for it.
type shards struct{ *topology }

func (s shards) Refresh(ctx context.Context) error { return s.refresh(ctx, topologyAge) }
func (s shards) Expire()                           { s.expire() }
func (s shards) Node(channel string) string        { return s.owner(slotOf(channel)) }

// contended tells from the number of receivers of a message, own of them this driver's, whether other clients wait. In a cluster a
// plain message is counted where it was sent only.
func (d *Driver) contended(told int64, own int) bool {
	return told > int64(own) || d.cluster && d.checked.pubSub != PubSubSharded
}
