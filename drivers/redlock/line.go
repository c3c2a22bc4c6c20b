package redlock

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/redistopic"
)

// inLine is what an attempt of a waiter has to do with the line at the waiters' node: see turn.lua. The zero value is that of an attempt in no
// line.
type inLine struct {
	node   int    // the waiters' node
	turn   string // the ticket, as turn.lua takes it; "" in no line
	ticket int64
	place  redistopic.Place // from the refusal, or zero
	left   time.Duration    // of the value that was in the way, with place; negative if the value does not expire
}

// stand makes the attempt one of a waiter with a ticket in the line at a node. Due says that it is the waiter's turn.
func (l *lease) stand(node int, ticket int64, due bool) {
	l.line = inLine{node: node, turn: redistopic.Text(ticket, due), ticket: ticket}
}

// placed tells the topic the place in line with which the attempt was refused, if the attempt has one.
func (l *lease) placed(t *redistopic.Topic) {
	l.mu.Lock()
	place, left := l.line.place, l.line.left
	l.mu.Unlock()
	if place.Ticket != 0 {
		t.Placed(place, left)
	}
}

// inLine reports whether the vote is asked for by turn.lua. The caller holds lease.mu.
func (v *vote) inLine() bool { return v.lease.line.turn != "" && v.lease.line.node == int(v.index) }

// takeInTurn is the request to set the value in turn.
func (v *vote) takeInTurn(b rueidis.Builder) rueidis.Completed {
	l := v.lease
	seal := ""
	if l.driver.single() {
		seal = sealValue
	}
	return b.Evalsha().Sha1(turnScript.sha).Numkeys(1).Key(l.request.Name).
		Arg(l.line.turn, channel(l.request.Name), l.value, strconv.FormatInt(milliseconds(l.ttl), 10), seal).Build()
}

// refusedInLine reports whether an answer is that of turn.lua to one who is refused, and notes the place. The caller holds lease.mu.
func (v *vote) refusedInLine(result rueidis.RedisResult) bool {
	if !v.inLine() {
		return false
	}
	numbers, err := result.AsIntSlice()
	if err != nil || len(numbers) != 4 {
		return false
	}
	line := &v.lease.line
	line.left = time.Duration(numbers[0]) * time.Millisecond
	line.place = redistopic.Place{Ticket: numbers[1], Granted: numbers[2], Last: numbers[3], Free: numbers[0] == 0}
	return true
}

// farewell is the channel and the message with which the value is deleted. The end of a hold is told by an empty message, after which the next in line
// asks. An attempt that lost the vote tells those in line that somebody else has the lock: an empty message would have one after the other try
// the same, for as long as the lock is held without the waiters' node. The caller holds lease.mu.
func (v *vote) farewell() (onChannel, message string) {
	l := v.lease
	switch {
	case !l.lost || v.doubt:
		return channel(l.request.Name), ""
	case v.inLine() && l.line.ticket != 0:
		return channel(l.request.Name), redistopic.HeldMessage(l.line.ticket)
	}
	return "", ""
}

// notice tells the waiters at a node that does not have the value of the end of the hold.
type notice struct{ channel string }

// weight implements task.
func (t notice) weight() int { return 1 }

// command implements task.
func (t notice) command(n *node, _ int64) (rueidis.Completed, bool) {
	return n.client.B().Publish().Channel(t.channel).Message("").Build(), true
}

// answer implements task.
func (t notice) answer(*node, rueidis.RedisResult, error) {}
