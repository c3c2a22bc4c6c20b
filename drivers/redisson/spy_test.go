package redisson

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/testenv"
)

// spy listens on a channel.
type spy struct{ messages chan string }

func spyOn(tb testing.TB, s *testenv.RedisServer, channel string) *spy {
	tb.Helper()
	client := userClient(tb, rueidis.ClientOption{InitAddress: []string{s.Addr}, ForceSingleClient: true})
	c, cancel := client.Dedicate()
	tb.Cleanup(cancel)
	sp := &spy{messages: make(chan string, 1000)}
	subscribed := make(chan struct{}, 2)
	c.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage:      func(m rueidis.PubSubMessage) { sp.messages <- m.Message },
		OnSubscription: func(rueidis.PubSubSubscription) { subscribed <- struct{}{} },
	})
	if err := c.Do(tb.Context(), c.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		tb.Fatal(err)
	}
	<-subscribed
	return sp
}

func (sp *spy) next(tb testing.TB) string {
	tb.Helper()
	select {
	case m := <-sp.messages:
		return m
	case <-time.After(hangGuard):
		tb.Fatal("no message")
		return ""
	}
}
