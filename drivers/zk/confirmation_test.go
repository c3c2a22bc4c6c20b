package zk

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestConfirmation has rows of answers on one session. Times are in hundredths of a TTL, and rounds are 25 apart.
func TestConfirmation(t *testing.T) {
	type answer struct {
		r         reach
		sent, now int64
		alive     int64 // what is known then
	}
	for _, test := range []struct {
		name    string
		answers []answer
		next    reach // by which more is known
		due     int64
	}{
		{"nothing answered", nil, toServer, 26},
		{"two that wait for each other", []answer{{toLeader, 27, 28, 0}, {toMajority, 28, 29, 0}, {toLeader, 54, 55, 0}, {toLeader, 55, 56, 27}}, toServer, 80},
		{"a write is missing", []answer{{toLeader, 27, 28, 0}, {toLeader, 28, 29, 0}, {toLeader, 54, 55, 0}, {toLeader, 55, 56, 0}}, toMajority, 60},
		{"which comes later", []answer{{toLeader, 27, 28, 0}, {toLeader, 28, 29, 0}, {toLeader, 54, 55, 0}, {toLeader, 55, 56, 0}, {toMajority, 60, 61, 27}}, toServer, 80},
		{"too early for a ping", []answer{{toMajority, 20, 21, 0}, {toMajority, 22, 23, 0}, {toMajority, 24, 25, 0}}, toServer, 26},
		{"the second was sent before the answer to the first", []answer{{toLeader, 27, 28, 0}, {toMajority, 28, 29, 0}, {toMajority, 54, 60, 0}, {toMajority, 55, 61, 0}, {toLeader, 62, 63, 27}}, toServer, 85},
		{"writes of a busy session", []answer{{toMajority, 10, 11, 0}, {toMajority, 27, 28, 0}, {toMajority, 30, 31, 0}, {toMajority, 40, 41, 0}, {toMajority, 54, 55, 0}, {toMajority, 57, 58, 27}}, toServer, 80},
		{"what a server answers alone", []answer{{toServer, 27, 28, 0}, {toServer, 55, 56, 0}, {toServer, 90, 91, 0}}, toLeader, 91},
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
				if got := c.answered(a.r, a.sent, a.now); got != a.alive {
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

// TestConfirmationOfAnotherConnection sees that a connection to a session that there is says nothing of who leads, and that what was
// begun on the last one, perhaps over another follower, does not go on.
func TestConfirmationOfAnotherConnection(t *testing.T) {
	var c confirmation
	c.opened(0, 1, 25, true)
	c.answered(toLeader, 27, 28) // the second one is missing
	if got := c.opened(40, 41, 25, false); got != 0 {
		t.Errorf("before a write: got alive at %d, want 0", got)
	}
	if r, due := c.next(41); r != toMajority || due != 41 {
		t.Errorf("next: got %d at %d, want a write now", r, due)
	}
	if got := c.answered(toMajority, 41, 42); got != 40 {
		t.Errorf("after the write: got alive at %d, want 40, when the connection was asked for", got)
	}
	if r, due := c.next(42); r != toServer || due != 66 {
		t.Errorf("next: got %d at %d, want one at 66", r, due)
	}
}

// TestConfirmationIsNeverAhead has a client ask a follower whose connection to the leader stalls and goes silent, at random and each way
// on its own: what is known never is more than what the leader has heard of.
func TestConfirmationIsNeverAhead(t *testing.T) {
	known := 0
	for seed := range uint64(3000) {
		e := newFollowing(seed)
		for e.step() {
			if alive := min(e.confirmation.heard, e.confirmation.led); alive > e.touched {
				t.Fatalf("seed %d, at %d: got alive at %d, and the leader has heard of the session at %d last", seed, e.now, alive, e.touched)
			}
		}
		if e.confirmation.heard > 0 {
			known++
		}
	}
	if known < 2000 {
		t.Errorf("in %d runs anything is known, want it in most", known)
	}
}

// following is a client, a follower and a leader. Times are in milliseconds, and half a tick is 1000.
type following struct {
	rand         *rand.Rand
	confirmation confirmation
	now          int64
	events       eventQueue
	up, down     wire // from the follower to the leader, and back
	reported     bool // the follower has told the leader of all that it heard
	heardAt      int64
	touched      int64 // when the leader heard last
}

// wire keeps the order. What is sent while it stalls arrives afterwards.
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
	e := &following{rand: rand.New(rand.NewPCG(seed, 0))}
	e.up.silent, e.down.silent = 4000+e.rand.Int64N(12_000), 4000+e.rand.Int64N(12_000)
	e.confirmation.opened(0, 1, 1200, true)
	e.in(e.rand.Int64N(1000), e.ping)
	e.in(1, e.ask)
	for range 6 { // stalls
		e.in(e.rand.Int64N(12_000), func() {
			w := &e.up
			if e.rand.IntN(2) == 0 {
				w = &e.down
			}
			w.stalls = e.now + e.rand.Int64N(4000)
		})
	}
	return e
}

func (e *following) in(d int64, do func()) { heap.Push(&e.events, event{e.now + d, do}) }

func (e *following) step() bool {
	if len(e.events) == 0 || e.now > 20_000 {
		return false
	}
	next := heap.Pop(&e.events).(event)
	e.now = next.at
	next.do()
	return true
}

// send has something done where it arrives.
func (e *following) send(w *wire, do func()) {
	at := max(w.last, e.now, w.stalls) + 1 + e.rand.Int64N(40)
	if e.now >= w.silent || at >= w.silent {
		w.silent = 0 // nor does what comes behind it
		return
	}
	w.last = at
	e.in(at-e.now, do)
}

// ping is what the leader does each half tick.
func (e *following) ping() {
	e.in(1000, e.ping)
	e.send(&e.down, func() {
		at, news := e.heardAt, !e.reported
		e.reported = true
		e.send(&e.up, func() {
			if news {
				e.touched = max(e.touched, at)
			}
		})
	})
}

// ask is what the client does: what is due, and writes now and then, several at a time.
func (e *following) ask() {
	r, due := e.confirmation.next(e.now)
	switch {
	case e.rand.IntN(3) == 0:
		r = toMajority
	case r == toServer:
		e.in(max(1, min(due-e.now, e.rand.Int64N(2000))), e.ask)
		return
	}
	sent, thinking := e.now, e.rand.IntN(2) == 0
	if thinking { // it does not wait for the answer
		e.in(1+e.rand.Int64N(500), e.ask)
	}
	e.in(e.rand.Int64N(20), func() { // the follower
		e.heardAt, e.reported = e.now, false
		e.send(&e.up, func() {
			e.send(&e.down, func() {
				e.in(e.rand.Int64N(20), func() {
					e.confirmation.answered(r, sent, e.now)
					if !thinking {
						e.in(1, e.ask)
					}
				})
			})
		})
	})
}
