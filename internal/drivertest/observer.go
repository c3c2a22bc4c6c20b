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
	observerKnowsIn = time.Second // the time after which a new observer knows the leader
)

// ObserverComesBack disconnects an observer while the leader changes, first by
// broken connections and then by silent ones. Soon after the outage it must
// know the leader, compared with an observer that starts at that time. url
// makes a URL from the address of a server. Its TTL must be less than a minute.
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
			go func() { // ends when ctx ends
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
			knows := func(leader *dsync.Lease, within time.Duration) {
				t.Helper()
				late := time.After(within)
				for {
					select {
					case owner := <-seen:
						if owner == leader.Owner() {
							return
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
				t.Fatalf("the observer saw %q while it was cut off", owner)
			default:
			}
			late := openClient(t, url(server))
			healed := time.Now()
			link.Heal()
			if owner := observed(t, late, election); owner != after.Owner() {
				t.Fatalf("a new observer sees %q, want %q", owner, after.Owner())
			}
			t.Logf("a new observer knew the leader after %v", time.Since(healed))
			knows(after, observerKnowsIn)
			t.Logf("the observer that returned knew the leader after at most %v", time.Since(healed))
		})
	}
}

// observed is the first leader that a client sees.
func observed(t *testing.T, c *dsync.Client, election string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), HangGuard)
	defer cancel()
	for status, err := range c.Observe(ctx, election) {
		if err != nil {
			t.Fatalf("Observe: %v", err)
		}
		if status.Owner != "" {
			return status.Owner
		}
	}
	t.Fatalf("no leader seen in %v", HangGuard)
	return ""
}

func openClient(t *testing.T, url string) *dsync.Client { return openTTL(t, url, 0) }

func openTTL(t *testing.T, url string, ttl time.Duration) *dsync.Client {
	t.Helper()
	c, err := dsync.Open(t.Context(), url, &dsync.Options{TTL: ttl})
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
