package redistopic

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// The queue of a name consists of all clients that wait for the name, each with
// a ticket from the server. It determines which client tries first when the
// name may be free. It is only a hint.
//
// Each client counts the releases that it receives, since the first in the
// queue is granted the name after each release. A client whose turn it is tries
// immediately. A client with n clients in front of it tries when n pauses, or
// fewer if n is large, have passed without a message. So a dead client delays
// the others by one pause.
//
// A second kind of message reports how long the name will be held, and the last
// ticket that was granted. It is sent after a grant out of turn, a refusal in
// turn, and each grant in a slow queue. If a client is granted the name out of
// turn, most clients ahead of it must request a new place. So clients far back
// let the clients ahead try first, even while messages are late.

// Place is a place in a queue, as the server reports it.
type Place struct {
	Ticket  int64 // 0: the server keeps no queue
	Granted int64 // the last ticket that was granted the name
	Last    int64 // the last ticket that was given out
	Free    bool  // the name is free, and another client is ahead of this client
}

// before returns the number of clients ahead. It may be negative.
func (p Place) before() int64 { return p.Ticket - p.Granted - 1 }

// turn is the place of a topic, as a state machine. It is guarded by
// Listener.mu.
//
//	state    the topic                          ended by             next
//	outside  has no ticket                      a release            due
//	                                            Placed               held or free
//	held     waits for the end of a hold        a release            free; due with no client in front
//	                                            left and delay       due
//	free     lets the clients in front try      a release            free, with one client fewer in front
//	                                            a grant to another   held
//	                                            delay                due
//	due      has told a waiter to try           TakeTurn             held or free, until the answer
//	                                            a grant to another   held: the turn is revoked
//	                                            longest              due: a waiter is told again
//
// Granted leads to outside. place and due are the state: place.Ticket is 0
// outside, and place.Free distinguishes free from held.
type turn struct {
	place Place // as far as it is known
	// place.before() when the server reported it; it does not grow later in the
	// same queue
	most  int64
	freed time.Time // if place.Free: when the name became free
	// if place.Free: when the turn of the topic comes, unless a message arrives
	// earlier
	begin time.Time
	pace  time.Duration // average time from a release to the next message
	due   bool          // Wake has a value because it is the turn of the topic
	// or messages may have been missed, or the waiter that took the last value
	// could not try
	owed  bool
	ended bool // a release was received after the last TakeTurn, and no grant after that release
	timer *time.Timer
	at    time.Time // when the timer will fire
}

const (
	// The pause for each client in front is twice the pace, within these
	// bounds. The lower bound is about the time of a round trip, and of sending
	// a message to all clients in a long queue.
	shortStep  = 2 * time.Millisecond
	stepOfEach = 10 * time.Microsecond
	longStep   = 30 * time.Millisecond

	// manySteps is the number of clients ahead up to which each adds one pause.
	// Beyond that, each doubling of the number of clients adds manySteps
	// pauses.
	manySteps = 16

	// longest is the longest wait of the first client without a message. The
	// waiters behind it wait for at most lastPauses more, and so for five
	// seconds.
	longest    = 3750 * time.Millisecond
	lastPauses = 1250 * time.Millisecond

	// A message that the name is held begins with heldMark and the label of the
	// database, if that is known. Ten digits follow with the remaining
	// milliseconds, and six with the ticket modulo ticketsTold. To Redisson it
	// is a meaningless number.
	ticketsTold = 1_000_000
	timesTold   = 10_000_000_000
	heldMark    = "-"

	// lastLabel is the greatest label of a database with which a message fits
	// into 64 bits. lastZeros is the maximum number of zeros in a
	// ReleaseMessage.
	lastLabel = 900
	lastZeros = 16
)

// Channels belong to all databases of a server, and each database has its own
// queue. So messages contain the label of the database: its number plus one, or
// 0 if it is not known.

// Label returns the label of a database in the format of the scripts.
func Label(label int) string {
	if label < 1 || label > lastLabel {
		return ""
	}
	return strconv.Itoa(label)
}

// ReleaseMessage returns the message that a hold has ended: a number of zeros
// for each database up to 15, which Redisson reads as 0. A single zero may be
// from any database.
func ReleaseMessage(label int) string {
	if label < 1 || label > lastZeros {
		return "0"
	}
	return strings.Repeat("0", label)
}

// foreign reports whether the message of a release is from another database.
func foreign(message string, label int) bool {
	return label > 0 && len(message) > 1 && len(message) != label && strings.Trim(message, "0") == ""
}

// Ticket returns the ticket of the topic, or 0.
func (t *Topic) Ticket() int64 {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return t.turn.place.Ticket
}

// Text returns the ticket of a client in the form that the script of a queue
// expects, with a question mark if it is not the client's turn.
func Text(ticket int64, due bool) string {
	if due {
		return strconv.FormatInt(ticket, 10)
	}
	return "?" + strconv.FormatInt(ticket, 10)
}

// TakeTurn is called by a waiter that is about to try. It returns the ticket,
// and whether it is the turn of the topic. void reports that the turn was
// revoked after the waiter had taken the value from Wake, so the waiter need
// not try.
func (t *Topic) TakeTurn() (ticket int64, due, void bool) {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	u := &t.turn
	due, void = u.due, !u.due && !u.owed
	u.due, u.owed, u.ended = false, false, false
	return u.place.Ticket, due, void
}

// Placed records the place that a refused waiter got, and how long the name
// stays held (negative if unknown).
func (t *Topic) Placed(p Place, left time.Duration) {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	u := &t.turn
	paused := u.place.Free && u.place.Ticket == p.Ticket
	u.place, u.most = p, p.before()
	if t.takeBack() || u.ended { // there was a release after the server had refused the request
		u.place.Free, left = true, 0
	}
	if u.place.Free && paused {
		// the pause continues, so callers that try repeatedly, each time for
		// less than a pause, also get a turn
		t.scheduleIn(min(time.Until(u.begin), u.delay()))
		return
	}
	if u.place.Free {
		u.freed = time.Now()
	}
	t.scheduleTurn(left)
}

// Granted records that a waiter was granted the name for a time, so the ticket
// is used up.
func (t *Topic) Granted(ttl time.Duration) {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if t.turn.place.Ticket != 0 {
		t.turn.place = Place{}
		t.scheduleTurn(ttl)
	}
}

// released handles the message that the name is free. counts means that no
// other message reports the same release.
func (t *Topic) released(counts bool) {
	p := &t.turn.place
	if p.Ticket == 0 {
		t.wakeInTurn()
		return
	}
	if p.Free && counts && p.before() > 0 {
		p.Granted++ // the first client was granted the name after the previous release
	}
	t.turn.measure()
	p.Free, t.turn.freed, t.turn.ended = true, time.Now(), true
	t.scheduleTurn(0)
}

// held handles the message that the name is held.
func (t *Topic) held(left time.Duration, granted int64) {
	p := &t.turn.place
	if p.Ticket == 0 {
		return
	}
	// number of tickets since the granted one
	since := (p.Ticket%ticketsTold - granted + ticketsTold) % ticketsTold
	if since > ticketsTold/2 {
		since -= ticketsTold // overtaken
	}
	if since-1 > t.turn.most {
		// the granted ticket is of a later queue: this ticket's queue is gone,
		// and the next attempt gets another ticket
		since = 0
	}
	t.turn.measure()
	p.Granted, p.Free, t.turn.ended = p.Ticket-since, false, false
	t.takeBack()
	t.scheduleTurn(left)
}

// takeBack revokes the turn of the topic and reports whether it had the turn.
func (t *Topic) takeBack() bool {
	if !t.turn.due {
		return false
	}
	t.turn.due = false
	if !t.turn.owed {
		select {
		case <-t.Wake:
		default: // a waiter has taken the value and will find that the turn has passed
		}
	}
	return true
}

// scheduleTurn makes a waiter try in its turn, once the name may be free.
func (t *Topic) scheduleTurn(left time.Duration) {
	d := t.turn.delay()
	if left < 0 || left > longest {
		left, d = longest, min(d, lastPauses-rand.N(lastPauses/2))
	}
	t.scheduleIn(left + d)
}

// scheduleIn makes a waiter try after a time, or immediately.
func (t *Topic) scheduleIn(d time.Duration) {
	t.turn.begin = time.Now().Add(d)
	if d > 0 {
		t.setTimer(d)
	} else {
		t.wakeInTurn()
	}
}

// wakeInTurn makes a waiter try immediately and makes a waiter try again later
// if none does.
func (t *Topic) wakeInTurn() {
	t.turn.due = true
	t.wake()
	if t.turn.place.Ticket != 0 {
		t.setTimer(longest)
	}
}

// setTimer makes a waiter try after a time.
func (t *Topic) setTimer(d time.Duration) {
	if t.waiters == 0 {
		return
	}
	t.turn.at = time.Now().Add(d)
	if t.turn.timer == nil {
		t.turn.timer = time.AfterFunc(d, t.timerFired)
	} else {
		t.turn.timer.Reset(d)
	}
}

func (t *Topic) timerFired() {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if t.waiters > 0 && !time.Now().Before(t.turn.at) { // otherwise it was reset in the meantime
		t.turn.due = true
		t.wake()
		t.setTimer(longest)
	}
}

// measure updates pace by the time from the last release to the current
// message.
func (u *turn) measure() {
	if u.place.Free {
		u.pace += (time.Since(u.freed) - u.pace) / 8
	}
}

// delay returns the time that the clients ahead get.
func (u *turn) delay() time.Duration {
	p := u.place
	before := p.before()
	step := min(max(2*u.pace, shortStep+stepOfEach*time.Duration(p.Last-p.Granted)), longStep)
	switch {
	case before <= 0:
		return 0
	case before <= manySteps:
		return time.Duration(before) * step
	}
	return time.Duration(float64(manySteps*step) * (1 + math.Log2(float64(before)/manySteps)))
}

// readHeld reads the message that the name is held. It contains the label of
// the database, how long the name is held, and the last six digits of the last
// granted ticket, as a negative number.
func readHeld(message string) (label int, left time.Duration, granted int64, ok bool) {
	text, ok := strings.CutPrefix(message, heldMark)
	if !ok {
		return 0, 0, 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	left = time.Duration(n/ticketsTold%timesTold) * time.Millisecond
	return int(n / ticketsTold / timesTold), left, n % ticketsTold, err == nil
}
