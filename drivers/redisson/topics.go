package redisson

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/redistopic"
)

// newTopics returns the listener to the channels of names with waiters.
func newTopics(d *Driver) *redistopic.Listener {
	o := redistopic.Options{
		Life:    d.life.Lifecycle,
		Channel: func(name string) string { return prefixName(channelPrefix, name) },
		Kinds: func() (plain, sharded bool) {
			return d.checked.pubSub != PubSubSharded, d.checked.pubSub != PubSubPlain
		},
		Connect: d.connectTo,
		Label:   func() int { return int(d.label.Load()) },
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
	var stale func() bool
	if client.Mode() == rueidis.ClientModeSentinel {
		used := addresses(client)
		stale = func() bool { return addresses(client) != used }
	}
	c, _ := client.Dedicate()
	return redistopic.Conn{DedicatedClient: c, End: c.Close, Stale: stale}, true
}

// addresses returns the servers that a client of sentinels uses: the primary, and
// a replica if the program's client sends it some requests.
func addresses(client rueidis.Client) string {
	return strings.Join(slices.Sorted(maps.Keys(client.Nodes())), " ")
}

// shards is a topology in the form of package redistopic.
type shards struct{ *topology }

func (s shards) Refresh(ctx context.Context) error { return s.refresh(ctx, topologyAge) }
func (s shards) Expire()                           { s.expire() }
func (s shards) Node(channel string) string        { return s.owner(slotOf(channel)) }

// contended says whether other clients wait, by the number of receivers of a message, of which own are this driver's. In a cluster the
// count of a plain message covers only the node where it was sent.
func (d *Driver) contended(told int64, own int) bool {
	return told > int64(own) || d.cluster && d.checked.pubSub != PubSubSharded
}

// setDatabase notes which database the client uses, which messages say.
func (d *Driver) setDatabase(n int) { d.label.Store(int32(n + 1)) }

func (d *Driver) lineLabel() string { return redistopic.Label(int(d.label.Load())) }

func (d *Driver) releaseMessage() string { return redistopic.ReleaseMessage(int(d.label.Load())) }

// lookForDatabase asks which database a client of the program's uses. Where the
// question is not permitted, messages do not say it.
func (d *Driver) lookForDatabase(ctx context.Context) {
	text, err := d.do(ctx, d.client.B().ClientInfo().Build()).ToString()
	if err != nil {
		return
	}
	for _, field := range strings.Fields(text) {
		if value, ok := strings.CutPrefix(field, "db="); ok {
			if n, err := strconv.Atoi(value); err == nil {
				d.setDatabase(n)
			}
		}
	}
}
