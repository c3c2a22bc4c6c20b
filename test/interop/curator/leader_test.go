package curator

import (
	"context"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
)

// queries are the URL parameters with which a dsync client competes with
// candidates of a Curator recipe.
var queries = map[string]string{"LeaderSelector": "?value=note", "LeaderLatch": "?value=note&node=latch-"}

// candidate returns a client of dsync.
func (b *bed) candidate(recipe, note string) *dsync.Client {
	b.Helper()
	c, err := dsync.Open(b.Context(), "zk://"+b.server.Addr+queries[recipe], &dsync.Options{Note: note, TTL: long})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// TestLeaders makes dsync and Curator leaders follow each other, with each
// recipe. Both libraries must report the same leader.
func TestLeaders(t *testing.T) {
	t.Parallel()
	for version, java := range commands(t, "Candidate") {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			bed := newBed(t, java)
			for recipe := range queries {
				t.Run(recipe, func(t *testing.T) {
					t.Parallel()
					b := bed.on(recipe)
					b.T = t
					b.leaders(recipe)
				})
			}
		})
	}
}

func (b *bed) leaders(recipe string) {
	first, last := b.candidate(recipe, "first"), b.candidate(recipe, "last")
	const session = 2 * time.Second
	java := func(id string) *peer { return b.peer(javas, session, "RECIPE="+recipe, "ID="+id) }
	second, third := java("second"), java("third")

	lease, err := first.Lock(b.Context(), b.name)
	if err != nil {
		b.Fatal(err)
	}
	token := lease.Token()
	leading := second.begin("a", "lead")
	b.contenders(2)
	b.waits("Java behind dsync", leading)
	b.leader(first, second, "first")

	if err := lease.Unlock(b.Context()); err != nil {
		b.Error(err)
	}
	b.elected("second", leading)
	leading = third.begin("a", "lead")
	b.contenders(2)
	b.leader(first, third, "second")
	lastLeads := make(chan string, 1)
	go func() { // ends when the test ends
		if lease, err = last.Lock(b.Context(), b.name); err != nil {
			lastLeads <- err.Error()
			return
		}
		lastLeads <- "ok"
	}()
	b.contenders(3)

	second.do(b.T, "b", "resign")
	b.elected("third", leading)
	b.waits("dsync behind Java", lastLeads)
	b.leader(first, second, "third")

	third.Kill()
	b.elected("last", lastLeads)
	b.leader(first, second, "last")
	if lease.Token() <= token {
		b.Errorf("tokens: got %d and then %d", token, lease.Token())
	}
}

// elected waits until a candidate leads.
func (b *bed) elected(who string, leading <-chan string) {
	b.Helper()
	began := time.Now()
	if outcome := await(b.T, who+" leads", leading); outcome != "ok" {
		b.Fatalf("%s: %s", who, outcome)
	}
	b.Logf("%s leads, after %v", who, time.Since(began))
}

// leader checks that both libraries report the leader.
func (b *bed) leader(c *dsync.Client, java *peer, want string) {
	b.Helper()
	if got := await(b.T, "leader", java.begin("l", "leader")); got != want {
		b.Errorf("Curator reports that %q leads, want %q", got, want)
	}
	ctx, cancel := context.WithTimeout(b.Context(), guard)
	defer cancel()
	for status, err := range c.Observe(ctx, b.name) {
		if err != nil {
			b.Fatal(err)
		}
		if status.Held && status.Note == want {
			return
		}
	}
	b.Errorf("dsync does not report that %q leads", want)
}
