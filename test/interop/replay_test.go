package interop

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	ours "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

// Requests whose answers are lost, and grants that no replica confirms.

// unlockAnswerLost covers a connection that breaks after the server has freed
// the lock but before the client has received the answer.
func unlockAnswerLost(t *testing.T, b *bed) {
	own := singleBed(t, b.version)
	name := fresh("answer")
	link, addr := testenv.Wire(t, own.addrs[0])
	direct := own.addrs
	own.addrs = []string{addr}
	c := own.client(t, "")
	own.addrs = direct
	j := own.redisson.thread(name, "plain", name)
	sp := spyOn(t, own.node(name), channelOf(name))
	lease := lock(t, c, name)
	w := j.acquire(0)
	own.subscribed(t, channelOf(name), 2)
	lost := link.LoseReply(channelOf(name)) // the script that ends a hold contains the name of its channel
	if err := lease.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock whose answer was lost: %v", err)
	}
	select {
	case <-lost:
	case <-time.After(hangGuard):
		t.Error("no answer was lost")
	}
	w.ok(t)
	own.holds(t, name, j.owner(t), "1")
	sp.expect(t, "0")
	j.do(t, "unlock")
	own.gone(t, name)
}

// acquireTwice checks that a Go request that is sent twice acquires the lock
// once. Redisson would count two holds.
func acquireTwice(t *testing.T, b *bed) {
	name := fresh("twice")
	d, _, err := driver.Open(t.Context(), b.url(""))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	hold := "00000000-0000-4000-8000-000000000000:1"
	var lease driver.Lease
	for range 2 {
		lease, err = d.Acquire(t.Context(), &driver.Request{Name: name, Hold: hold, TTL: watchdog, Events: silent{}})
		if err != nil {
			t.Fatal(err)
		}
		b.holds(t, name, hold, "1")
	}
	j := b.redisson.thread(name, "plain", name)
	j.begin("tryLock").equals(t, "false")
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	j.begin("tryLock").equals(t, "true")
	j.do(t, "unlock")
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	for _, version := range agent.Versions(agent.New, agent.Old) {
		t.Run("redisson "+version, func(t *testing.T) { t.Parallel(); replicas(t, singleBed(t, version)) })
	}
}

// replicas covers a replica that is connected but confirms nothing.
func replicas(t *testing.T, b *bed) {
	primary := b.node("")
	link, addr := testenv.Wire(t, primary.Addr)
	replica := testenv.Redis(t, "--replicaof", strings.Replace(addr, ":", " ", 1))
	primary.AwaitReplicas(1)
	name := fresh("replicas")
	c := b.client(t, "&waitreplicas=1&waitlimit=200ms")
	j := b.java.open(t, "replicated", []string{primary.Addr, replica.Addr}, watchdog).thread(name, "plain", name)
	j.acquire(0).ok(t)
	j.do(t, "unlock")
	unlock(t, lock(t, c, name))

	link.Hold(wire.Both)
	if lease, err := c.TryLock(t.Context(), name); !errors.Is(err, ours.ErrNotReplicated) || !errors.Is(err, dsync.ErrUnavailable) {
		t.Errorf("TryLock: got %v, %v, want ErrNotReplicated", lease, err)
	}
	b.gone(t, name)
	w := j.begin("tryLock")
	if w.wait(t); w.err == nil {
		t.Errorf("java's tryLock: got %q, want an error", w.text)
	}
	t.Logf("Redisson %s: %v", b.version, w.err)
	b.gone(t, name)
	link.Heal()
	primary.AwaitReplicas(1)
	j.acquire(0).ok(t)
	j.do(t, "unlock")
	unlock(t, lock(t, c, name))
}
