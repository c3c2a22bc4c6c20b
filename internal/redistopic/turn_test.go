package redistopic

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inLine returns a topic with one waiter that has a place in a line.
func inLine(p Place) *Topic {
	h := &hub{listener: &Listener{closed: true}}
	t := &h.topics[0]
	t.hub, t.Wake, t.waiters = h, make(chan struct{}, 1), 1
	t.Placed(p, time.Minute)
	return t
}

// behind returns the number of clients ahead, if it is known.
func (t *Topic) behind() (clients int64, known bool) {
	p := t.turn.place
	return max(p.before(), 0), p.Ticket != 0
}

// heldMessage is the message that another client holds the name for an unknown
// time. It contains the last granted ticket.
func heldMessage(granted int64) string {
	const unknownLeft = 1_000_000 * time.Second
	return fmt.Sprintf("%s%d%06d", heldMark, unknownLeft.Milliseconds(), granted%ticketsTold)
}

// hear has the topic handle a message.
func (t *Topic) hear(take func()) { locked(&t.hub.listener.mu, take) }

func locked(mu *sync.Mutex, f func()) {
	mu.Lock()
	defer mu.Unlock()
	f()
}

func TestTurn(t *testing.T) {
	const behind = 3 // clients ahead
	const calls = 10
	refused := Place{Ticket: behind + 1, Last: behind + 1}
	for _, test := range []struct {
		what   string
		happen func(topic *Topic)
		// The waiter is woken within these bounds.
		from, to time.Duration
	}{
		{"no message arrives", func(*Topic) {}, longest, 5 * time.Second},
		{"a release", func(p *Topic) { p.hear(func() { p.released(true) }) }, behind * shortStep, behind * longStep},
		{"a release for each client ahead", func(p *Topic) {
			for range behind + 1 {
				p.hear(func() { p.released(true) })
			}
		}, 0, 0},
		{"a release, and a message about a grant out of turn", func(p *Topic) {
			p.hear(func() { p.released(true) })
			p.hear(func() { p.held(time.Minute, behind) })
		}, longest, 5 * time.Second},
		{"the end of the hold without a release", func(p *Topic) { p.hear(func() { p.held(time.Second, behind) }) }, time.Second, 2 * time.Second},
		{"a release after the server's refusal, received before the response", func(p *Topic) {
			p.TakeTurn() // the waiter tries
			p.hear(func() { p.released(true) })
			p.Placed(refused, time.Minute)
		}, behind * shortStep, behind * longStep},
		{"a release and the next grant before the response", func(p *Topic) {
			p.TakeTurn()
			p.hear(func() { p.released(true) })
			p.hear(func() { p.held(time.Minute, 1) })
			p.Placed(Place{Ticket: behind + 1, Granted: 1, Last: behind + 1}, time.Minute)
		}, longest, 5 * time.Second},
		{"a release, and refusals because other clients are ahead, each before the end of the pause", func(p *Topic) {
			p.hear(func() { p.released(true) })
			for range calls {
				p.Leave(false)
				time.Sleep(shortStep)
				p.hear(func() { p.hub.join(0) })
				p.Placed(Place{Ticket: refused.Ticket, Last: refused.Last, Free: true}, time.Millisecond)
			}
		}, 0, calls * shortStep},
		{"a release before another waiter comes, after the last waiter has left", func(p *Topic) {
			p.hear(func() { p.released(true) })
			p.Leave(false)
			p.hear(func() { p.hub.join(0) })
			p.Placed(refused, time.Minute)
		}, longest, 5 * time.Second},
	} {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic := inLine(refused)
				start := time.Now()
				test.happen(topic)
				<-topic.Wake
				if took := time.Since(start); took < test.from || took > test.to {
					t.Errorf("the waiter is woken after %v, want %v to %v", took, test.from, test.to)
				}
				topic.hear(func() { topic.turn.timer.Stop() })
			})
		})
	}
}

// TestMessageOfALaterLine: the line of a ticket is gone, and messages arrive
// from a line that began later. Tickets begin with the time, and messages
// contain only the last six digits. So in every second such message there seem
// to be hundreds of thousands of clients ahead of the ticket. Releases follow
// in quick succession, and each would postpone the attempt again.
func TestMessageOfALaterLine(t *testing.T) {
	const began = 1_795_654_800_000_000
	for _, later := range []int64{1, 200_000, 499_999, 500_001, 700_000, 999_990, 999_999} { // microseconds
		synctest.Test(t, func(t *testing.T) {
			topic := inLine(Place{Ticket: began + 3, Granted: began, Last: began + 3})
			topic.hear(func() { topic.held(time.Minute, (began+later)%ticketsTold) })
			releases := 0
			for woken := false; !woken && releases < 10; releases++ {
				topic.hear(func() { topic.released(true) })
				select {
				case <-topic.Wake:
					woken = true
				case <-time.After(shortStep / 2):
				}
			}
			if releases > 4 { // the message may also be about the ticket's line
				t.Errorf("%d us later: the waiter sends no request after %d releases", later, releases)
			}
			topic.hear(func() { topic.turn.timer.Stop() })
		})
	}
}

// TestLateMessages: while messages to a long line are late because servers or
// clients are busy, only the first few clients in the line try. Other clients
// would overtake most of the line.
func TestLateMessages(t *testing.T) {
	const clients = 1000
	const step = shortStep + clients*stepOfEach
	for late, want := range map[time.Duration]int{ // pauses since a release, and how many clients try
		manySteps / 2: manySteps/2 + 1,
		manySteps:     manySteps + 1,
		2 * manySteps: 2*manySteps + 1,
		4 * manySteps: 8*manySteps + 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			line := make([]*Topic, clients)
			for i := range line {
				line[i] = inLine(Place{Ticket: int64(i + 1), Last: clients})
				line[i].hear(func() { line[i].released(true) })
			}
			time.Sleep(late * step)
			synctest.Wait()
			var asking, last int
			for i, topic := range line {
				if _, due, _ := topic.TakeTurn(); due {
					asking, last = asking+1, i+1
				}
				topic.hear(func() { topic.turn.timer.Stop() })
			}
			if asking != want || last != want {
				t.Errorf("%d pauses after a release, %d clients send requests, the last of them number %d in the queue; want the first %d", late, asking, last, want)
			}
		})
	}
}

// TestNothingIsHeard: a waiter that receives no message tries within five
// seconds, at any place in a line.
func TestNothingIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for before := int64(1); before < 1_000_000; before *= 4 {
			topic := inLine(Place{Ticket: before + 1, Last: before + 1})
			start := time.Now()
			<-topic.Wake
			if took := time.Since(start); took < longest || took > 5*time.Second {
				t.Errorf("the waiter with %d clients ahead is woken after %v", before, took)
			}
			topic.hear(func() { topic.turn.timer.Stop() })
		}
	})
}

func TestBehind(t *testing.T) {
	const behind = 3
	topic := inLine(Place{Ticket: behind + 1, Last: behind + 1})
	want := func(what string, clients int64, known bool) {
		t.Helper()
		if got, ok := topic.behind(); ok != known || ok && got != clients {
			t.Errorf("%s: got %d clients, known %t, want %d, %t", what, got, ok, clients, known)
		}
	}
	want("not confirmed yet", behind, true)
	topic.hear(func() { topic.hub.heard(heldMessage(behind), true) })
	want("the client ahead was granted the name", 0, true)
	topic.hear(func() { topic.hub.heard(heldMessage(behind+7), true) })
	want("clients behind were granted the name, too", 0, true)
	topic.Granted(time.Minute)
	want("the ticket is used up", 0, false)
	topic.hear(func() { topic.turn.timer.Stop() })
}

// TestMessagesOfDatabases: channels belong to all databases of a server. A
// waiter is woken by messages of its own database and by messages without a
// database.
func TestMessagesOfDatabases(t *testing.T) {
	held := func(label int, left int64) string { return fmt.Sprintf("-%s%010d%06d", Label(label), left, 0) }
	for _, test := range []struct {
		own     int
		message string
		wakes   bool
		left    time.Duration // how long the name is held, if the message is accepted and does not wake
	}{
		{own: 1, message: ReleaseMessage(1), wakes: true},
		{own: 1, message: ReleaseMessage(2)},
		{own: 2, message: ReleaseMessage(2), wakes: true},
		{own: 2, message: ReleaseMessage(3)},
		{own: 2, message: ReleaseMessage(1), wakes: true}, // perhaps from Java
		{own: 0, message: ReleaseMessage(2), wakes: true},
		{own: 2, message: ReleaseMessage(0), wakes: true},
		{own: 17, message: ReleaseMessage(17), wakes: true},
		{own: 1, message: "1", wakes: true},   // from a read-write lock
		{own: 1, message: "100", wakes: true}, // permits
		{own: 2, message: held(2, 1000), left: time.Second},
		{own: 2, message: held(1, 1000)},
		{own: 2, message: held(0, 1000), left: time.Second},
		{own: 0, message: held(2, 1000), left: time.Second},
		{own: 2, message: "-1000000000", left: time.Second}, // from an earlier version
		{own: lastLabel, message: held(lastLabel, 1000), left: time.Second},
		{own: lastLabel, message: held(lastLabel-1, 1000)},
		{own: lastLabel + 1, message: held(lastLabel+1, 1000), left: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			topic := inLine(Place{Ticket: 1, Last: 1})
			topic.hub.listener.options.Label = func() int { return test.own }
			start := time.Now()
			topic.hear(func() { topic.hub.heard(test.message, true) })
			<-topic.Wake
			took := time.Since(start)
			switch {
			case test.wakes && took > 0,
				test.left > 0 && took != test.left,
				!test.wakes && test.left == 0 && took < longest:
				t.Errorf("label %d, message %q: the waiter is woken after %v", test.own, test.message, took)
			}
			topic.hear(func() { topic.turn.timer.Stop() })
		})
	}
}
