package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	observerAwayFor = 30 * time.Second
	observerKnowsIn = time.Second // after the end of that
)

// ObserverComesBack cuts an observer off while the leader changes, by connections that break and by ones on which nothing arrives. Soon after
// the end of that the observer knows who leads. url makes a URL of the address of a server, whose TTL is to be less than a minute.
func ObserverComesBack(t *testing.T, server string, url func(addr string) string) {
	for name, cut := range map[string]func(*wire.Wire){
		"cut":        (*wire.Wire).Cut,
		"black hole": func(link *wire.Wire) { link.Hold(wire.Both) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link, addr := testenv.Wire(t, server)
			observer := openClient(t, url(addr))
			election := "planner " + name
			before := mustLead(t, openClient(t, url(server)), election)
			seen := make(chan string, 100)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { // ends with ctx
				defer close(ended)
				for status, err := range observer.Observe(ctx, election) {
					if err != nil {
						t.Errorf("Observe: %v", err)
					}
					seen <- status.Owner
				}
			}()
			defer func() {
				cancel()
				<-ended
			}()
			knows := func(leader *dsync.Lease, within time.Duration) time.Duration {
				t.Helper()
				start, late := time.Now(), time.After(within)
				for {
					select {
					case owner := <-seen:
						if owner == leader.Owner() {
							return time.Since(start)
						}
					case <-late:
						t.Fatalf("the observer does not know the leader after %v", within)
					}
				}
			}
			knows(before, HangGuard)
			cut(link)
			time.Sleep(observerAwayFor / 2)
			if err := before.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			after := mustLead(t, openClient(t, url(server)), election)
			time.Sleep(observerAwayFor / 2)
			select {
			case owner := <-seen:
				t.Fatalf("the observer has seen %q while it was cut off", owner)
			default:
			}
			link.Heal()
			t.Logf("the observer knew after %v", knows(after, observerKnowsIn))
		})
	}
}

func openClient(t *testing.T, url string) *dsync.Client {
	t.Helper()
	c, err := dsync.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func mustLead(t *testing.T, c *dsync.Client, name string) *dsync.Lease {
	t.Helper()
	l, err := c.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
