package zk

import "sync"

// reach is how far a request got that was answered.
type reach int8

const (
	toServer   reach = iota // the server of the connection may have answered it alone
	toLeader                // the leader has handled it
	toMajority              // a majority of the ensemble has stored it
)

// reachOf tells how far a request of an operation gets, if the answer to it is no error.
func reachOf(op int32) reach {
	switch op {
	case opSync:
		return toLeader
	case opCreate, opDelete, opSetData, opSetACL, opCheck, opMulti, opCreate2, opCreateContainer, opCreateTTL:
		return toMajority
	}
	return toServer
}

// confirmation finds out from the answers to a session until when its timeout has begun anew, where that counts: at the leader of the
// ensemble. An answer alone says little. A follower answers pings and reads by itself, also when it is cut off from the leader, and a
// leader that is cut off from the others does so while they already have another one. Two facts make a moment count.
//
// The leader has heard of the session since. Each half tick it sends a ping to a follower, which answers with the sessions that it has
// heard of; the connection between the two keeps the order of all that is sent, both ways. So let a request be answered by a follower,
// and the leader send a ping after that. A request to the leader that comes behind the ping brings its own answer to the follower behind
// the ping, and a second one, which is sent when the first was answered, gets to the leader behind the follower's answer to the ping:
// when the second one is answered, the leader has heard of the session. Only how long a leader is silent has to be known, which is age.
//
// And the leader still led. Those who elect another one are a majority, as are those who had to store a write before it was answered.
// So a server is in both, which followed the old leader when it stored the write: the new one was elected later than the write was sent.
// All sessions begin anew under a new leader. A sync proves nothing of that: a leader answers it although nobody follows it.
type confirmation struct {
	mu    sync.Mutex
	age   int64  // longer than a leader goes without a ping to a follower
	first moment // a request that was answered
	then  moment // one before it, since which the follower has received a ping
	heard int64  // the leader has heard of the session since
	led   int64  // it was the leader then
}

// moment is when a request was sent and answered, or zero.
type moment struct{ sent, answered int64 }

// opened begins with a connection whose request for the session was answered, as it is by the leader alone. To make the session takes a
// write; a connection to a session that there is takes none.
func (c *confirmation) opened(sent, now, age int64, made bool) (alive int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age, c.first, c.then = age, moment{sent, now}, moment{}
	c.heard = max(c.heard, sent)
	if made {
		c.led = max(c.led, sent)
	}
	return min(c.heard, c.led)
}

// answered takes the answer to a request, and returns since when the session is known to be alive.
func (c *confirmation) answered(r reach, sent, now int64) (alive int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r == toMajority {
		c.led = max(c.led, sent)
	}
	if r != toServer && c.then != (moment{}) && sent >= c.then.answered {
		c.heard = max(c.heard, c.then.sent)
		c.then = moment{}
	}
	if r != toServer && c.then == (moment{}) && sent >= c.first.answered+c.age {
		c.then = moment{c.first.sent, now}
		c.first = moment{sent, now}
	}
	return min(c.heard, c.led)
}

// next returns the request by which more is known, or toServer and when there is one.
func (c *confirmation) next(now int64) (r reach, due int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	due = c.first.answered + c.age
	switch {
	case c.led < max(c.heard, c.then.sent):
		return toMajority, now
	case c.then != (moment{}), due <= now:
		return toLeader, now
	}
	return toServer, due
}
