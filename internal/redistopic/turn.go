package redistopic

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// A line is all clients that wait for one name, each with a ticket of the
// server. It says who asks first when the name may be free, and promises
// nothing.
//
// Each client counts the releases that it hears of, since the next in line is
// granted the name after each. A client whose turn it is asks at once, and one
// with n clients in front of it when n pauses have passed without a message, or
// fewer where n is large. So a dead client holds up the others for a pause.
//
// A second message tells for how long the name is held, and which ticket was
// granted last: after a grant out of turn, a refusal in turn, and each grant in
// a slow line. A client that is granted the name out of turn makes most of
// those in front ask for a new place, so clients far back leave the first
// question to those in front even while messages are late.

// Place is a place in a line, as the server says it.
type Place struct {
	Ticket  int64 // 0: the server keeps no line
	Granted int64 // the last ticket that was granted the name
	Last    int64 // the last ticket that was given out
	Free    bool  // nobody has the name, and another client is before this one
}

// before is how many clients are in front, or not above 0.
func (p Place) before() int64 { return p.Ticket - p.Granted - 1 }

// turn is the place of a topic. It is guarded by Listener.mu.
type turn struct {
	place Place // as far as it is known
	// place.before() when the server said it: in the same line there are no
	// more later
	most  int64
	freed time.Time // if place.Free: when
	// if place.Free: when it is the turn of the topic, if there is no message
	// before
	begin time.Time
	pace  time.Duration // on average from a release to the next message
	due   bool          // Wake has a value because it is the turn of the topic
	// or because messages may have been missed, or the waiter who took the last
	// value could not ask
	owed  bool
	ended bool // after the last TakeTurn a release was heard, and no grant after that release
	timer *time.Timer
	at    time.Time // when the timer is to fire
}

const (
	// The pause for each client in front is twice the pace, within these
	// bounds. The lower one is about a round trip, and what a message to all in
	// a long line takes.
	shortStep  = 2 * time.Millisecond
	stepOfEach = 10 * time.Microsecond
	longStep   = 30 * time.Millisecond

	// manySteps is for how many clients in front there is a pause each. For
	// twice as many there are as many pauses more, and so on.
	manySteps = 16

	// longest is the longest wait of the first in line without a message. Those
	// behind wait for lastPauses more at most, and so for five seconds.
	longest    = 3750 * time.Millisecond
	lastPauses = 1250 * time.Millisecond

	// A message that the name is held begins with heldMark and the label of the
	// database, if that is known. Ten digits follow with the milliseconds that
	// are left, and six with the ticket modulo ticketsTold. To Redisson it is a
	// number without a meaning.
	ticketsTold = 1_000_000
	timesTold   = 10_000_000_000
	heldMark    = "-"

	// lastLabel is the greatest label of a database with which a message is a
	// number of 64 bits, and lastZeros the most zeros in a ReleaseMessage.
	lastLabel = 900
	lastZeros = 16
)

// Channels belong to all databases of a server, and each database has a line of
// its own. So messages have the label of the database: its number plus one, or
// 0 if it is not known.

// Label is the label of a database as the scripts of a line take it.
func Label(label int) string {
	if label < 1 || label > lastLabel {
		return ""
	}
	return strconv.Itoa(label)
}

// ReleaseMessage is the message that a hold has ended: a number of zeros for
// each database up to 15, which Redisson reads as 0. One zero is from any
// database.
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

// Text says for the script of a line which ticket a client has, and by a
// question mark that it is not its turn.
func Text(ticket int64, due bool) string {
	if due {
		return strconv.FormatInt(ticket, 10)
	}
	return "?" + strconv.FormatInt(ticket, 10)
}

// TakeTurn is called by a waiter that is about to ask. It returns the ticket,
// and whether it is the turn of the topic. void reports that a message took the
// turn back after the waiter had taken the value from Wake: it need not ask.
func (t *Topic) TakeTurn() (ticket int64, due, void bool) {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	u := &t.turn
	due, void = u.due, !u.due && !u.owed
	u.due, u.owed, u.ended = false, false, false
	return u.place.Ticket, due, void
}

// Placed takes the place with which a waiter was refused, and for how long the
// name is held (negative if that is not known).
func (t *Topic) Placed(p Place, left time.Duration) {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	u := &t.turn
	paused := u.place.Free && u.place.Ticket == p.Ticket
	u.place, u.most = p, p.before()
	if t.takeBack() || u.ended { // there was a release after the server had refused
		u.place.Free, left = true, 0
	}
	if u.place.Free && paused {
		// the pause goes on: callers that ask again and again, each time for
		// less than a pause, get a turn as well
		t.scheduleIn(min(time.Until(u.begin), u.delay()))
		return
	}
	if u.place.Free {
		u.freed = time.Now()
	}
	t.scheduleTurn(left)
}

// Granted notes that a waiter was granted the name for a time, and so the
// ticket is used up.
func (t *Topic) Granted(ttl time.Duration) {
	ln := t.hub.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if t.turn.place.Ticket != 0 {
		t.turn.place = Place{}
		t.scheduleTurn(ttl)
	}
}

// released takes the message that the name is free. Counts says that no other
// message tells of the same release.
func (t *Topic) released(counts bool) {
	p := &t.turn.place
	if p.Ticket == 0 {
		t.wakeInTurn()
		return
	}
	if p.Free && counts && p.before() > 0 {
		p.Granted++ // the next in line was granted the name after the release before
	}
	t.turn.measure()
	p.Free, t.turn.freed, t.turn.ended = true, time.Now(), true
	t.scheduleTurn(0)
}

// held takes the message that somebody has the name.
func (t *Topic) held(left time.Duration, granted int64) {
	p := &t.turn.place
	if p.Ticket == 0 {
		return
	}
	// tickets since the one that was granted
	since := (p.Ticket%ticketsTold - granted + ticketsTold) % ticketsTold
	if since > ticketsTold/2 {
		since -= ticketsTold // passed by
	}
	if since-1 > t.turn.most {
		// of a later line: that of the ticket is gone, and who asks gets
		// another ticket
		since = 0
	}
	t.turn.measure()
	p.Granted, p.Free, t.turn.ended = p.Ticket-since, false, false
	t.takeBack()
	t.scheduleTurn(left)
}

// takeBack takes back that it is the turn of the topic, and reports whether it
// was.
func (t *Topic) takeBack() bool {
	if !t.turn.due {
		return false
	}
	t.turn.due = false
	if !t.turn.owed {
		select {
		case <-t.Wake:
		default: // a waiter has taken the value, and will find that the turn has passed
		}
	}
	return true
}

// scheduleTurn has a waiter ask in its turn, once the name may be free.
func (t *Topic) scheduleTurn(left time.Duration) {
	d := t.turn.delay()
	if left < 0 || left > longest {
		left, d = longest, min(d, lastPauses-rand.N(lastPauses/2))
	}
	t.scheduleIn(left + d)
}

// scheduleIn has a waiter ask after a time, or at once.
func (t *Topic) scheduleIn(d time.Duration) {
	t.turn.begin = time.Now().Add(d)
	if d > 0 {
		t.setTimer(d)
	} else {
		t.wakeInTurn()
	}
}

// wakeInTurn has a waiter ask at once, and again if it does not.
func (t *Topic) wakeInTurn() {
	t.turn.due = true
	t.wake()
	if t.turn.place.Ticket != 0 {
		t.setTimer(longest)
	}
}

// setTimer has a waiter ask after a time.
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
	if t.waiters > 0 && !time.Now().Before(t.turn.at) { // else it was set anew meanwhile
		t.turn.due = true
		t.wake()
		t.setTimer(longest)
	}
}

// measure updates pace by the time from the last release to the message of now.
func (u *turn) measure() {
	if u.place.Free {
		u.pace += (time.Since(u.freed) - u.pace) / 8
	}
}

// delay is how long those in front are given.
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

// readHeld reads the message that somebody has the name: the label of the
// database, for how long, and the last six digits of the last ticket that was
// granted, as a negative number.
func readHeld(message string) (label int, left time.Duration, granted int64, ok bool) {
	text, ok := strings.CutPrefix(message, heldMark)
	if !ok {
		return 0, 0, 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	left = time.Duration(n/ticketsTold%timesTold) * time.Millisecond
	return int(n / ticketsTold / timesTold), left, n % ticketsTold, err == nil
}
