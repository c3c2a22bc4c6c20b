package interop

import (
	"slices"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

// plainOf returns the number of plain subscribers of a channel. In a cluster,
// they may be on any node.
func (b *bed) plainOf(channel string) int64 {
	n := int64(0)
	for _, node := range b.nodes {
		n += node.Do("PUBSUB", "NUMSUB", channel).([]any)[1].(int64)
	}
	return n
}

// shardedOf returns the number of sharded subscribers of a channel, which are
// on the node of its slot.
func (b *bed) shardedOf(channel string) int64 {
	return b.node(channel).Do("PUBSUB", "SHARDNUMSUB", channel).([]any)[1].(int64)
}

// plainThread returns a thread of a client that does not know that the cluster
// has sharded channels, because the node that it queried is not the master of
// slot 0. Redisson 3.22 to 3.26 query the first address, and 3.27 queries any
// of the three masters.
func (b *bed) plainThread(t *testing.T, name string) *thread {
	t.Helper()
	const most = 60 // all of them are sharded once in 10^28 runs
	c := b.client(t, "")
	addrs := slices.Clone(b.addrs)
	slices.Reverse(addrs) // the master of slot 0 is the first node
	for sharded := range most {
		lease := lock(t, c, name)
		j := b.java.open(t, b.mode, addrs, watchdog).thread(name, "plain", name)
		w := b.javaWaits(t, j)
		plain := b.plainOf(channelOf(name)) == 1
		unlock(t, lease)
		w.ok(t)
		j.do(t, "unlock")
		b.free(t, name)
		if plain {
			t.Logf("%d clients were sharded before the first that was not", sharded)
			return j
		}
	}
	t.Fatalf("each of %d clients of Redisson %s was sharded", most, b.version)
	return nil
}

// TestPlainByChance covers a Redisson 3.22 to 3.27 client in a cluster. With
// pubsub=auto, neither side receives the messages of the other. With
// pubsub=both, both sides do.
func TestPlainByChance(t *testing.T) {
	t.Parallel()
	for _, version := range agent.Versions(agent.Middle) {
		if agent.Before(version, agent.Sharded) || !agent.Before(version, agent.SeesShards) {
			t.Skipf("Redisson %s does not choose by chance", version)
		}
		b := clusterBed(t, version)
		j := b.plainThread(t, fresh("chance"))
		t.Run("auto", func(t *testing.T) { b.unheard(t, j) })
		t.Run("both", func(t *testing.T) { b.heard(t, j) })
	}
}

// asked waits until a node has executed two more scripts than before. A waiter
// has sent the second one after it has subscribed.
func (b *bed) asked(t *testing.T, name, command string, begin func()) {
	t.Helper()
	node := b.node(name)
	before := node.Commands()[command]
	begin()
	testenv.Eventually(t, func() bool { return node.Commands()[command] >= before+2 }, "a waiter has sent its second request")
}

// javaWaits begins lock() and returns when Java is waiting for a message.
// Redisson sends its scripts with EVAL, and dsync with EVALSHA.
func (b *bed) javaWaits(t *testing.T, j *thread) (w *call) {
	t.Helper()
	b.asked(t, j.lock, "eval", func() { w = j.acquire(0) })
	return w
}

func (b *bed) goWaits(t *testing.T, c dsync.Locker, name string) (w *goWait) {
	t.Helper()
	b.asked(t, name, "evalsha", func() { w = lockLater(c, name) })
	return w
}

// unheard checks that each side listens where the other side does not publish.
func (b *bed) unheard(t *testing.T, j *thread) {
	auto := *b
	auto.parameter = "&mode=cluster"
	c, channel := auto.client(t, ""), channelOf(j.lock)
	plain, sharded := spyOn(t, b.node(channel), channel), spyOnShard(t, b.node(channel), channel)

	lease := lock(t, c, j.lock)
	w := b.javaWaits(t, j)
	if plain, sharded := b.plainOf(channel), b.shardedOf(channel); plain != 2 || sharded != 1 {
		t.Errorf("while java waits: got %d plain and %d sharded subscribers, want 2 and the spy", plain, sharded)
	}
	unlock(t, lease)
	sharded.expect(t, "0")
	plain.expect(t)
	if w.ended() {
		t.Error("java was woken by a message that it does not listen for")
	}
	b.node(channel).Do("PUBLISH", channel, "0") // Go does not publish there
	w.ok(t)

	testenv.Eventually(t, func() bool { return b.plainOf(channel) == 1 }, "java no longer listens")
	g := b.goWaits(t, c, j.lock)
	if plain, sharded := b.plainOf(channel), b.shardedOf(channel); plain != 1 || sharded != 2 {
		t.Errorf("while go waits: got %d plain and %d sharded subscribers, want the spy and 2", plain, sharded)
	}
	j.do(t, "unlock")
	plain.expect(t, "0", "0") // the message published by this test, and Java's
	sharded.expect(t)
	unlock(t, g.granted(t)) // it sends a request every 5 s
}

func (b *bed) heard(t *testing.T, j *thread) {
	c := b.client(t, "")
	byMessage(t, func() time.Duration {
		lease := lock(t, c, j.lock)
		w := b.javaWaits(t, j)
		start := time.Now()
		unlock(t, lease)
		w.ok(t)
		toJava := time.Since(start)
		g := b.goWaits(t, c, j.lock)
		start = time.Now()
		j.do(t, "unlock")
		lease = g.granted(t)
		toGo := time.Since(start)
		unlock(t, lease)
		return max(toJava, toGo)
	})
	b.free(t, j.lock)
}
