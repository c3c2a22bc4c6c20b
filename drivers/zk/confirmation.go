package zk

import "sync"

// reach is how far an answered request got.
type reach int8

const (
	toServer   reach = iota // the server of the connection may have answered it alone
	toLeader                // the leader has handled it
	toMajority              // a majority of the ensemble has stored it
)

// reachOf tells how far a request of an operation gets, if the answer is no error.
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
// ensemble. An answer alone says little. A follower answers pings and reads by itself, also when cut off from the leader, and a
// leader that is cut off from the others answers while they already have another one. Two facts make a moment count.
//
// The leader has heard of the session since. Each half tick the leader sends a ping to a follower, which answers with the sessions heard
// of; the connection between the two keeps the order of all messages, both ways. So let a request be answered by a follower, and the leader
// send a ping later. A request to the leader behind the ping brings its own answer to the follower behind the ping, and a second one, sent
// when the first was answered, gets to the leader behind the follower's answer to the ping: when the second one is answered, the leader has
// heard of the session. How long a leader is silent at most is age.
//
// And the leader still led. The servers that elect another leader are a majority, and so are the servers that stored a write before its
// answer. So a server is in both, and followed the old leader when it stored the write: the new leader was elected after the write was
// sent. All sessions begin anew under a new leader. A sync proves no leadership: a leader answers syncs although nobody follows.
type confirmation struct {
	mu    sync.Mutex
	age   int64  // longer than a leader goes without a ping to a follower
	first moment // a request that was answered
	then  moment // one before it, since which the follower has received a ping
	heard int64  // the leader has heard of the session since
	led   int64  // the leader led then
}

// moment is when a request was sent and answered, or zero.
type moment struct{ sent, answered int64 }

// opened begins with a connection whose request for the session was answered, as only the leader does. To make the session takes a write;
// a connection to a session of before takes none.
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

// next returns the next useful request, or toServer and when there is one.
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
