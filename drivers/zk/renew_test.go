package zk

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestConfirmation has sequences of answers on one session. Times are in
// hundredths of a TTL, and rounds are 25 apart.
func TestConfirmation(t *testing.T) {
	type answer struct {
		r         reach
		sent, now int64
		alive     int64 // the session is known to be alive at this time
	}
	for _, test := range []struct {
		name    string
		answers []answer
		next    reach // the next useful request
		due     int64
	}{
		{"nothing answered", nil, toServer, 26},
		{"two that wait for each other", []answer{{toLeader, 27, 28, 0}, {toMajority, 28, 29, 0}, {toLeader, 54, 55, 0}, {toLeader, 55, 56, 27}}, toServer, 80},
		{"a write is missing", []answer{{toLeader, 27, 28, 0}, {toLeader, 28, 29, 0}, {toLeader, 54, 55, 0}, {toLeader, 55, 56, 0}}, toMajority, 60},
		{"which comes later", []answer{{toLeader, 27, 28, 0}, {toLeader, 28, 29, 0}, {toLeader, 54, 55, 0}, {toLeader, 55, 56, 0}, {toMajority, 60, 61, 27}}, toServer, 80},
		{"too early for a ping", []answer{{toMajority, 20, 21, 0}, {toMajority, 22, 23, 0}, {toMajority, 24, 25, 0}}, toServer, 26},
		{"the second was sent before the answer to the first", []answer{{toLeader, 27, 28, 0}, {toMajority, 28, 29, 0}, {toMajority, 54, 60, 0}, {toMajority, 55, 61, 0}, {toLeader, 62, 63, 27}}, toServer, 85},
		{"writes of a busy session", []answer{{toMajority, 10, 11, 0}, {toMajority, 27, 28, 0}, {toMajority, 30, 31, 0}, {toMajority, 40, 41, 0}, {toMajority, 54, 55, 0}, {toMajority, 57, 58, 27}}, toServer, 80},
		{"what a server answers by itself", []answer{{toServer, 27, 28, 0}, {toServer, 55, 56, 0}, {toServer, 90, 91, 0}}, toLeader, 91},
		{"the first of a round", []answer{{toLeader, 27, 28, 0}, {toMajority, 28, 29, 0}, {toLeader, 54, 55, 0}}, toLeader, 56},
		{"the first of a round without a write in the last", []answer{{toLeader, 27, 28, 0}, {toLeader, 28, 29, 0}, {toLeader, 54, 55, 0}}, toMajority, 56},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c confirmation
			if alive := c.opened(0, 1, 25, true); alive != 0 {
				t.Errorf("a new session: got alive at %d, want 0", alive)
			}
			now := int64(1)
			for _, a := range test.answers {
				if got := c.noteAnswer(a.r, a.sent, a.now); got != a.alive {
					t.Errorf("answer at %d: got alive at %d, want %d", a.now, got, a.alive)
				}
				now = a.now
			}
			if test.next != toServer {
				now = max(now, test.due)
				test.due = now
			}
			if r, due := c.next(now); r != test.next || due != test.due {
				t.Errorf("next: got %d at %d, want %d at %d", r, due, test.next, test.due)
			}
		})
	}
}

// TestConfirmationOfAnotherConnection checks that a connection to an existing
// session proves nothing about who leads, and that a confirmation begun on the
// previous connection, perhaps over another follower, does not go on.
func TestConfirmationOfAnotherConnection(t *testing.T) {
	var c confirmation
	c.opened(0, 1, 25, true)
	c.noteAnswer(toLeader, 27, 28) // the second one is missing
	if got := c.opened(40, 41, 25, false); got != 0 {
		t.Errorf("before a write: got alive at %d, want 0", got)
	}
	if r, due := c.next(41); r != toMajority || due != 41 {
		t.Errorf("next: got %d at %d, want a write now", r, due)
	}
	if got := c.noteAnswer(toMajority, 41, 42); got != 40 {
		t.Errorf("after the write: got alive at %d, want 40, when the connection was requested", got)
	}
	if r, due := c.next(42); r != toServer || due != 66 {
		t.Errorf("next: got %d at %d, want a request at 66", r, due)
	}
}

// TestConfirmationOnSlowServers checks that a session stays confirmed while
// each request takes up to an eighth of the TTL, and not much longer.
func TestConfirmationOnSlowServers(t *testing.T) {
	const ttl, age = 1000, 250
	for latency, want := range map[int64]bool{1: true, 50: true, 120: true, 130: false} {
		var c confirmation
		now := latency
		end := c.opened(0, now, age, true) + ttl
		for now < min(end, 100*ttl) {
			r, due := c.next(now)
			if r == toServer {
				now = due
				continue
			}
			sent := now
			now += latency
			if alive := c.noteAnswer(r, sent, now); now < end {
				end = max(end, alive+ttl)
			}
		}
		if got := now < end; got != want {
			t.Errorf("requests of %d ms, and a TTL of %d ms: confirmed all the time: got %t, want %t", latency, ttl, got, want)
		}
	}
}

// TestConfirmationIsNeverAhead has a client send requests to a follower whose
// connection to the leader stalls and goes silent, at random and each way
// separately. Then the client uses other followers, of the same leader and of
// one that was elected in the meantime, for which all sessions start with the
// election. The client never knows more than the leader has heard of.
func TestConfirmationIsNeverAhead(t *testing.T) {
	known, moved, runs := 0, 0, testenv.Briefly(300, 3000)
	for seed := range uint64(runs) {
		e := newFollowing(seed)
		for e.step() {
			if alive := min(e.confirmation.heard, e.confirmation.led); alive > e.last() {
				t.Fatalf("seed %d, at %d: got alive at %d, and the leader last heard of the session at %d", seed, e.now, alive, e.last())
			}
		}
		if e.confirmation.heard > 0 {
			known++
		}
		if e.confirmation.led > e.elected {
			moved++
		}
	}
	if known < runs*2/3 || moved < runs/6 {
		t.Errorf("anything is known in %d runs, and about the new leader in %d; want most runs", known, moved)
	}
}

// following is a client, its follower, and a leader, and later other followers
// and leaders. Times are in milliseconds, and half a tick is 1000.
type following struct {
	rand         *rand.Rand
	confirmation confirmation
	now          int64
	events       eventQueue
	elected      int64 // when the other leader was elected
	leaders      [2]int64
	connection   *connection
}

// connection is a client's connection to a follower.
type connection struct {
	leader   int
	up, down wire // from the follower to the leader, and back
	reported bool // the follower has reported all that it heard to the leader
	heardAt  int64
}

// last returns the time at which the leader last heard of the session.
func (e *following) last() int64 {
	if e.now < e.elected {
		return e.leaders[0]
	}
	return e.leaders[1]
}

// wire keeps the order. Messages sent while it stalls arrive afterwards.
type wire struct {
	last           int64
	stalls, silent int64 // until, and since
}

type event struct {
	at int64
	do func()
}

type eventQueue []event

func (q eventQueue) Len() int           { return len(q) }
func (q eventQueue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q eventQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)        { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = slices.Delete(*q, len(*q)-1, len(*q))
	return last
}

func newFollowing(seed uint64) *following {
	e := &following{rand: rand.New(rand.NewPCG(seed, 0)), connection: new(connection)}
	c := e.connection
	c.up.silent, c.down.silent = 4000+e.rand.Int64N(12_000), 4000+e.rand.Int64N(12_000)
	e.elected = 2000 + e.rand.Int64N(20_000)
	e.leaders[1] = e.elected
	e.confirmation.opened(0, 1, 1200, true)
	e.in(e.rand.Int64N(1000), func() { e.ping(c) })
	e.in(1, func() { e.ask(c) })
	const notices = 5000 // that it no longer leads any server
	e.in(e.rand.Int64N(e.elected+notices), func() { e.move(0) })
	e.in(e.elected+notices+e.rand.Int64N(3000), func() { e.move(1) })
	for range 6 { // stalls
		e.in(e.rand.Int64N(12_000), func() {
			w := &c.up
			if e.rand.IntN(2) == 0 {
				w = &c.down
			}
			w.stalls = e.now + e.rand.Int64N(4000)
		})
	}
	return e
}

// move connects the client to another follower of a leader, which thereby hears
// of the session.
func (e *following) move(leader int) {
	sent, c := e.now, &connection{leader: leader, up: wire{silent: never}, down: wire{silent: never}}
	e.connection = nil
	e.in(1+e.rand.Int64N(500), func() {
		e.leaders[leader] = e.now
		e.in(1+e.rand.Int64N(40), func() {
			e.connection = c
			e.confirmation.opened(sent, e.now, 1200, false)
			e.in(e.rand.Int64N(1000), func() { e.ping(c) })
			e.ask(c)
		})
	})
}

func (e *following) in(d int64, do func()) { heap.Push(&e.events, event{e.now + d, do}) }

func (e *following) step() bool {
	if len(e.events) == 0 || e.now > 30_000 {
		return false
	}
	next := heap.Pop(&e.events).(event)
	e.now = next.at
	next.do()
	return true
}

// send runs do when a message arrives.
func (e *following) send(w *wire, do func()) {
	at := max(w.last, e.now, w.stalls) + 1 + e.rand.Int64N(40)
	if e.now >= w.silent || at >= w.silent {
		w.silent = 0 // nor do later messages
		return
	}
	w.last = at
	e.in(at-e.now, do)
}

// ping is the leader's action each half tick.
func (e *following) ping(c *connection) {
	e.in(1000, func() { e.ping(c) })
	e.send(&c.down, func() {
		at, news := c.heardAt, !c.reported
		c.reported = true
		e.send(&c.up, func() {
			if news {
				e.leaders[c.leader] = max(e.leaders[c.leader], at)
			}
		})
	})
}

// ask is the client's action: the due requests, and a write now and then,
// several at a time. A deposed leader answers a sync.
func (e *following) ask(c *connection) {
	if e.connection != c {
		return
	}
	r, due := e.confirmation.next(e.now)
	switch {
	case e.rand.IntN(3) == 0:
		r = toMajority
	case r == toServer:
		e.in(max(1, min(due-e.now, e.rand.Int64N(2000))), func() { e.ask(c) })
		return
	}
	sent, thinking := e.now, e.rand.IntN(2) == 0
	if thinking { // it does not wait for the answer
		e.in(1+e.rand.Int64N(500), func() { e.ask(c) })
	}
	e.in(e.rand.Int64N(20), func() { // the follower
		c.heardAt, c.reported = e.now, false
		e.send(&c.up, func() {
			if r == toMajority && c.leader == 0 && e.now >= e.elected {
				return // no server stores it
			}
			e.send(&c.down, func() {
				e.in(e.rand.Int64N(20), func() {
					if e.connection != c {
						return
					}
					e.confirmation.noteAnswer(r, sent, e.now)
					if !thinking {
						e.in(1, func() { e.ask(c) })
					}
				})
			})
		})
	})
}
