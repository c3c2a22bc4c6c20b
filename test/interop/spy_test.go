package interop

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/testenv"
)

// spy subscribes to a channel.
type spy struct{ messages chan string }

// spyOn subscribes to the plain messages of a channel.
func spyOn(tb testing.TB, s *testenv.RedisServer, channel string) *spy {
	tb.Helper()
	return spyBy(tb, s, func(b rueidis.Builder) rueidis.Completed { return b.Subscribe().Channel(channel).Build() })
}

// spyOnShard subscribes to the sharded messages of a channel, on the node of
// its slot.
func spyOnShard(tb testing.TB, s *testenv.RedisServer, channel string) *spy {
	tb.Helper()
	return spyBy(tb, s, func(b rueidis.Builder) rueidis.Completed { return b.Ssubscribe().Channel(channel).Build() })
}

func spyBy(tb testing.TB, s *testenv.RedisServer, subscribe func(rueidis.Builder) rueidis.Completed) *spy {
	tb.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	c, cancel := client.Dedicate()
	tb.Cleanup(cancel)
	sp := &spy{messages: make(chan string, 1000)}
	subscribed := make(chan struct{}, 2)
	c.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage:      func(m rueidis.PubSubMessage) { sp.messages <- m.Message },
		OnSubscription: func(rueidis.PubSubSubscription) { subscribed <- struct{}{} },
	})
	if err := c.Do(tb.Context(), subscribe(c.B())).Error(); err != nil {
		tb.Fatal(err)
	}
	<-subscribed
	return sp
}

// expect waits for the messages, and checks that no other message arrives
// before them or soon after.
func (sp *spy) expect(tb testing.TB, want ...string) {
	tb.Helper()
	var got []string
	guard := time.After(hangGuard)
	for len(got) < len(want) {
		select {
		case m := <-sp.messages:
			got = append(got, m)
		case <-guard:
			tb.Fatalf("messages: got %q, want %q", got, want)
		}
	}
	select {
	case m := <-sp.messages:
		got = append(got, m)
	case <-time.After(50 * time.Millisecond):
	}
	if !slices.Equal(got, want) {
		tb.Errorf("messages: got %q, want %q", got, want)
	}
}
