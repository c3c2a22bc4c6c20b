package zk

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

// data returns the data of a request's node.
func (d *Driver) data(r *driver.Request) ([]byte, error) {
	if d.options.NoteAlone {
		if len(r.Note) > maxData {
			return nil, errLongRequest
		}
		return []byte(r.Note), nil
	}
	text, err := json.Marshal(value{Owner: r.Owner, Host: d.host, Time: time.Now(), Note: r.Note, Hold: r.Hold})
	if err == nil && len(text) > maxData {
		err = errLongRequest
	}
	return text, err
}

// request is a call to Acquire, as a state machine. Each state sends its
// request or waits for its event, and returns the next state. The fields belong
// to the goroutine of the call.
//
//	state     the request                      ended by                           next
//	boarding  waits for a session              a session                          asking, or looking without a claim: the rule's begin
//	asking    has sent a claim                 made, with the node of the name    entering
//	                                           made                               looking; a place in the queue: arming
//	                                           a node above is missing, now made  asking, as begin says
//	                                           the node of the name is there      asking, as begin says
//	                                           no answer, a new connection        finding
//	finding   looks for the unanswered claim   the claim is there                 looking; a place in the queue: arming
//	                                           it is not, and becomes a ghost     asking, as begin says
//	looking   has listed the other contenders  no node is before the claim         entering
//	                                           room for a claim not made yet      asking
//	                                           too many permits before its own    yielding
//	                                           a node is before the claim         arming; NoWait: givingUp
//	yielding  removes its permits              the answer                         looking
//	arming    joins the queue, sets watches    no place in the queue yet          asking
//	                                           a watch that a read must follow    looking
//	                                           all watches are set                waiting
//	waiting   sleeps                           an event, or 16 s                  looking
//	entering  is granted                       the session lives                  done, with a hold
//	givingUp  gives its claims back            the end of the session or a claim  boarding
//	                                           any other error                    done, with the error
//
// In every state an error leads to givingUp. Only givingUp decides about the
// claims and the error.
type request struct {
	caller // without a session before boarding
	asked  *driver.Request
	rule   *rule // the rule of the mode
	data   []byte
	paths  int // bytes of the paths of all claims
	state  state
	waited bool // the caller knows that it waits

	// Of one session.
	synced  bool   // the session's server has processed a write of this call, so that reads see all that preceded the call
	claim   *claim // the claim to be granted
	queued  *claim // the place in the queue, if that is a separate node; nil otherwise
	asksFor *claim // claim or queued
	sent    int64  // when the request was sent whose answer is the grant
	failed  error  // the answer after which the state finding was entered
	doubt   *ghost // the claim that may or may not exist
	record  record // the record that the last read found
	before  string // the node that the claim waits for, or ""
	ahead   *watch // watches that node
	limit   *watch // permits: a watch on their limit, while in the queue
	leases  *watch // permits: a watch on all leases, while first in the queue
	hold    *hold
	err     error
}

type state uint8

const (
	boarding state = iota
	asking
	finding
	looking
	yielding
	arming
	waiting
	entering
	givingUp
	done
)

// rule describes how a mode affects a request.
type rule struct {
	part   string // of the path of the claim, below the node of the name
	queues bool   // the place in the queue is a separate claim
	// returns the error of an unsupported request; nil if all requests are
	// supported
	supports func(r *request) error
	begin    func(r *request) state // returns the state asking, or a state that reads first
	look     func(r *request) (next state, err error)
	// prepares a wait by taking a place in the queue and setting watches
	arm func(r *request) (next state, err error)
}

// rules contains the rule of each mode. Requests for locks, for reads and for
// writes differ only in the names of their nodes.
var rules = [...]*rule{driver.Exclusive: &forLocks, driver.Read: &forLocks, driver.Write: &forLocks, driver.Permit: &forPermits}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, asked *driver.Request) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.Info().CheckTTL(asked.TTL); err != nil {
		return nil, err
	}
	data, err := d.data(asked)
	if err != nil {
		return nil, err
	}
	r := &request{asked: asked, rule: rules[asked.Mode], data: data}
	r.ctx, r.stop = ctx, d.life.Open().Done()
	r.newClaim(d)
	if supports := r.rule.supports; supports != nil {
		if err := supports(r); err != nil {
			return nil, err
		}
	}
	if err := d.life.Enter(); err != nil {
		return nil, err
	}
	defer d.life.Leave()
	for r.state != done {
		next, err := r.step(d)
		if err != nil {
			r.err, next = err, givingUp
		}
		r.state = next
	}
	if r.hold == nil {
		return nil, r.err
	}
	return r.hold, nil
}

// newClaim makes the claim of the request and forgets claims of an earlier
// session.
func (r *request) newClaim(d *Driver) {
	r.claim = &claim{
		dir: d.dir(r.asked.Name) + r.rule.part, infix: d.options.infix(r.asked.Mode), mode: r.asked.Mode,
		count: max(1, r.asked.Permits), contained: r.rule.queues,
	}
	r.asksFor, r.queued, r.ahead, r.limit, r.leases, r.doubt, r.synced = r.claim, nil, nil, nil, nil, nil, false
	r.paths = r.claim.size()
	if r.rule.queues {
		r.paths += r.newQueued(d).size()
	}
}

// newQueued makes a claim for a place in the queue.
func (r *request) newQueued(d *Driver) *claim {
	return &claim{session: r.session, dir: d.dir(r.asked.Name) + "/" + queuePart, infix: queueInfix, mode: r.asked.Mode, count: 1, contained: true}
}

// step performs the action of the current state and returns the next state.
func (r *request) step(d *Driver) (state, error) {
	switch r.state {
	case boarding:
		return r.board(d), nil
	case asking:
		return r.ask()
	case finding:
		return r.findClaim()
	case looking:
		return r.rule.look(r)
	case yielding:
		return r.yield()
	case arming:
		return r.rule.arm(r)
	case waiting:
		return r.wait()
	case entering:
		return r.enter()
	}
	return r.giveUp(), nil
}

// board gets a session. Claims of an earlier session are made again.
func (r *request) board(d *Driver) state {
	s, err := d.board(r.ctx, d.class(r.asked), r.paths)
	if err != nil {
		r.err = err
		return done
	}
	r.session = s
	r.newClaim(d)
	r.claim.session = s
	return r.rule.begin(r)
}

// ask sends the request for a claim.
func (r *request) ask() (state, error) {
	q, names := r.asksFor, &r.session.driver.nameNodes
	if err := r.await(); err != nil {
		return 0, err
	}
	r.sent = r.session.driver.now()
	q.prefix, q.ours = newPrefix(q.infix), !q.contained && !names.exists(q.dir)
	answer := q.sendCreate(r.data)
	node, err := receive(r.caller, answer)
	switch {
	case err == nil && q.ours:
		return entering, q.made(node)
	case err == nil:
		return r.made(node)
	case errors.Is(err, gozk.ErrNodeExists):
		r.synced = true
		names.add(q.dir)
	case errors.Is(err, gozk.ErrNoNode) && q.contained:
		if err := r.makeAbove(q.dir + "/"); err != nil {
			return 0, err
		}
	case errors.Is(err, gozk.ErrNoNode) && !q.ours:
		names.remove(q.dir)
	case errors.Is(err, gozk.ErrNoNode):
		if err := r.makeAbove(q.dir); err != nil {
			return 0, err
		}
	case isThrottled(err):
		if err := r.pause(); err != nil {
			return 0, err
		}
	case isAnswer(err):
		return 0, err
	case isOurs(err):
		r.doubt = &ghost{claim: q, late: answer}
		return 0, err
	default:
		r.failed = err
		return finding, nil
	}
	return r.askAgain(), nil
}

// askAgain returns the state in which the claim is requested again because no
// node was created.
func (r *request) askAgain() state {
	if r.asksFor.contained {
		return asking
	}
	return r.rule.begin(r)
}

// made records the node of the requested claim.
func (r *request) made(node string) (state, error) {
	q := r.asksFor
	if err := q.made(node); err != nil || q == r.claim {
		return looking, err
	}
	return arming, nil
}

// findClaim looks for the claim whose request was not answered.
func (r *request) findClaim() (state, error) {
	q := r.asksFor
	node, err := q.find(r.caller)
	if isOurs(err) {
		r.doubt = &ghost{claim: q}
		return 0, err
	}
	if node != "" {
		return r.made(node)
	}
	missing := *q
	haunt(&ghost{claim: &missing}) // a server that was frozen may still carry out the request
	if err == nil && isServerError(r.failed) {
		err = r.failed
	}
	return r.askAgain(), err
}

// enter makes a granted claim a hold. It does not check the caller's context,
// so if the context ends at the instant of the grant, the caller gets a lease.
func (r *request) enter() (state, error) {
	s := r.session
	d := s.driver
	now := d.now()
	if d.life.Open().Err() != nil {
		return 0, errStopping
	}
	if s.End.Passed(now) {
		s.Die(driver.ErrSessionEnded)
		return 0, errOver
	}
	h := &hold{claim: r.claim, request: r.asked, paths: r.paths, sent: r.sent, granted: now, record: r.record, phase: held}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return 0, errOver
	}
	h.number()
	h.end.Store(never)
	if r.asked.Fixed {
		h.end.Store(h.sent + int64(r.asked.TTL))
		h.timer = time.AfterFunc(time.Duration(h.end.Load()-now), h.expire)
	}
	for i := range h.count {
		s.nodes[sibling(h.node, i)] = h
	}
	wasEmpty := s.fresh.Empty()
	s.fresh.Add(h)
	if wasEmpty {
		s.Look()
	}
	r.hold = h
	return done, nil
}

// giveUp gives the claims back and decides which error the caller gets. If a
// session has ended, its claims are gone too. If Close ends a session, the
// claims end with it. If there is no answer, giveUp leaves the claims to the
// cleaner.
func (r *request) giveUp() state {
	s, err := r.session, r.err
	again := errors.Is(err, errOver) || errors.Is(err, errGone)
	unanswered := errors.Is(err, errNoAnswer)
	if r.claim.contained {
		s.driver.nameNodes.remove(r.claim.dir)
	}
	if unanswered && (r.doubt != nil || r.claim.node != "" || r.queued != nil && r.queued.node != "") {
		err = undecided{err}
	}
	if !again {
		err = r.explain(err)
	}
	for _, q := range [...]*claim{r.claim, r.queued} {
		switch {
		case q == nil || q.node == "" || errors.Is(r.err, errOver):
		case errors.Is(r.err, errStopping):
			s.leaveToClose(q)
		case unanswered:
			haunt(&ghost{claim: q})
		default:
			err = q.giveBack(r.caller, err)
		}
	}
	if r.doubt != nil && !errors.Is(r.err, errOver) {
		haunt(r.doubt) // from here on the cleaner owns the claim in doubt
	}
	s.Leave(r.paths)
	switch r.err = err; {
	case !again, !errors.Is(err, errOver) && !errors.Is(err, errGone):
		return done
	case r.ctx.Err() != nil:
		r.err = lifecycle.WithCause(r.ctx, driver.ErrUnavailable, errOver)
		return done
	}
	return boarding
}
