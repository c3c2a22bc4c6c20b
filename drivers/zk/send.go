package zk

import (
	"context"
	"errors"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"
)

// usualNudgeAfter is how long a server may be silent before it gets a nudge.
const usualNudgeAfter = 250 * time.Millisecond

// usualHangAfter is how long a server may leave a nudge unanswered before its
// connection is given up. maxHang is the upper bound of this time when servers
// are slow.
const (
	usualHangAfter = 2 * time.Second
	maxHang        = 16 * time.Second
)

// maxUnderway is the number of unanswered requests at which the session takes
// no new calls. Each request occupies a goroutine until its answer, even if its
// caller has left, and a silent server sends no answer.
const maxUnderway = 256

// caller sends requests on a session, and waits for each answer until ctx ends,
// or until stop is closed if it is not nil.
type caller struct {
	session *session
	ctx     context.Context
	stop    <-chan struct{}
}

// caller returns the caller for a call to the driver. Close ends such a call.
func (s *session) caller(ctx context.Context) caller {
	return caller{s, ctx, s.driver.life.Open().Done()}
}

// call carries out a call to the driver on a session of the usual TTL, and
// explains the error of f.
func (d *Driver) call(ctx context.Context, f func(c caller) error) error {
	s, err := d.board(ctx, d.options.TTL, 0)
	if err != nil {
		return err
	}
	defer s.Leave(0)
	c := s.caller(ctx)
	return c.explain(f(c))
}

// reply is the outcome of a request.
type reply[T any] struct {
	value T
	err   error
}

// send sends one request. The library's calls take no context, so each runs in
// a goroutine, which ends when the answer arrives or when the connection or the
// session ends. The channel has room for the reply, so it need not be read.
func send[T any](s *session, f func(*gozk.Conn) (T, error)) <-chan reply[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return enqueue(s, f)
}

// sendChange is like send, but for a request that changes something. Close
// waits briefly for the answer.
func sendChange[T any](s *session, f func(*gozk.Conn) (T, error)) <-chan reply[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead { // no more requests are added to changing
		return enqueue(s, f)
	}
	s.changing.Add(1)
	return enqueue(s, func(c *gozk.Conn) (T, error) {
		defer s.changing.Done()
		return f(c)
	})
}

// enqueue is like send, but is called with s.mu held.
func enqueue[T any](s *session, f func(*gozk.Conn) (T, error)) <-chan reply[T] {
	c := make(chan reply[T], 1)
	if s.closing {
		c <- reply[T]{err: errOver}
		return c
	}
	if s.underway++; s.underway == maxUnderway {
		s.room = make(chan struct{})
	}
	s.calls.Go(func() {
		v, err := f(s.conn)
		s.requestDone()
		c <- reply[T]{v, named(err)}
	})
	return c
}

// requestDone decrements the number of requests.
func (s *session) requestDone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underway--; s.underway == maxUnderway-1 {
		close(s.room)
	}
}

// receive waits for the outcome of a request.
func receive[T any](c caller, answer <-chan reply[T]) (T, error) {
	var none T
	s := c.session
	patience := time.Duration(s.driver.nudgeAfter.Load())
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	for {
		select {
		case r := <-answer:
			if errors.Is(r.err, gozk.ErrConnectionClosed) && s.End.Passed(s.driver.now()) {
				return none, errOver
			}
			return r.value, r.err
		case <-c.ctx.Done():
			return none, errNoAnswer
		case <-c.stop:
			return none, errStopping
		case <-s.Over():
			return none, errOver
		case <-quiet.C:
			s.nudge(patience)
			quiet.Reset(patience)
		}
	}
}

// outcome is like receive, but for a request that changes something. When Close
// has begun, the caller still gets the answer if it arrives before the end of
// the session.
func outcome[T any](c caller, answer <-chan reply[T]) (T, error) {
	s := c.session
	v, err := receive(c, answer)
	closing := s.driver.life.Open().Err() != nil && (errors.Is(err, errStopping) || errors.Is(err, errOver))
	if !closing {
		return v, err
	}
	select {
	case r := <-answer:
		return r.value, r.err
	case <-c.ctx.Done():
		return v, errNoAnswer
	case <-s.Buried(): // all requests have their replies
	}
	select {
	case r := <-answer:
		return r.value, r.err
	default:
		return v, err
	}
}

// nudge sends a request if the server has been silent for some time. Only the
// request's arrival matters. A server of an ensemble may fail to process a
// committed transaction. The answer and the events of the transaction then
// arrive with the next request. With a leader of version 3.8.0 this happened
// once in a few thousand hand-overs. A session has at most one nudge at a time.
//
// Without an answer to the nudge the connection is given up, because it may be
// losing packets while a new connection works. If the server itself is slow, a
// new connection does not help, so each connection that is given up doubles the
// time for the next one.
func (s *session) nudge(quiet time.Duration) {
	now := s.driver.now()
	if now-s.heard.Load() < int64(quiet) || !s.nudging.CompareAndSwap(false, true) {
		return
	}
	send(s, func(c *gozk.Conn) (struct{}, error) {
		defer s.nudging.Store(false)
		if l := s.current.Load(); l != nil {
			limit := s.hangLimit()
			giveUp := time.AfterFunc(limit, func() {
				if s.heard.Load() < now {
					s.hangFor.Store(int64(min(2*limit, maxHang)))
					l.Close()
				}
			})
			defer giveUp.Stop()
		}
		_, _, err := c.Exists("/")
		return struct{}{}, err
	})
}

// hangLimit returns how long a connection may be silent after a nudge.
func (s *session) hangLimit() time.Duration {
	return max(time.Duration(s.hangFor.Load()), time.Duration(s.driver.hangAfter.Load()))
}

// answeredAfter records the time that an answer took. Fast answers shorten the
// allowed silence again.
func (s *session) answeredAfter(took int64) {
	if limit := s.hangFor.Load(); limit > 0 && took < limit/4 {
		s.hangFor.Store(limit / 2)
	}
}

// await waits until there is a connection.
func (c caller) await() error {
	s := c.session
	s.mu.Lock()
	up := s.up
	s.mu.Unlock()
	select {
	case <-up:
		return nil
	default:
	}
	select {
	case <-up:
		return nil
	case <-c.ctx.Done():
		return errNoAnswer
	case <-c.stop:
		return errStopping
	case <-s.Over():
		return errOver
	}
}

// query sends a request repeatedly until there is an answer. The request must
// be safe to repeat.
func query[T any](c caller, f func(*gozk.Conn) (T, error)) (T, error) {
	for {
		if err := c.await(); err != nil {
			var none T
			return none, err
		}
		v, err := receive(c, send(c.session, f))
		if err == nil || isServerError(err) && !isThrottled(err) || isOurs(err) {
			return v, err
		}
		if err := c.pause(); err != nil {
			return v, err
		}
	}
}

// insist is like query, but for a request that changes something. It returns an
// undecided error if the change may have been made.
func insist[T any](c caller, f func(*gozk.Conn) (T, error)) (v T, err error) {
	for sent := false; ; {
		if err = c.await(); err == nil {
			v, err = outcome(c, sendChange(c.session, f))
			if err == nil || isServerError(err) && !isThrottled(err) {
				return v, err
			}
			sent = sent || !isThrottled(err)
		}
		if !isOurs(err) {
			err = c.pause()
		}
		switch {
		case err == nil:
		case sent:
			return v, undecided{err}
		default:
			return v, err
		}
	}
}

// change sends a transaction once. Unless its error is undecided, an error
// means that the transaction was not carried out.
func (c caller) change(ops ...any) ([]gozk.MultiResponse, error) {
	if err := c.await(); err != nil {
		return nil, err
	}
	results, err := outcome(c, sendChange(c.session, func(c *gozk.Conn) ([]gozk.MultiResponse, error) { return c.Multi(ops...) }))
	if !isAnswer(err) {
		err = undecided{err}
	}
	return results, err
}

// isOurs reports whether an error means that no caller is waiting for an answer
// anymore.
func isOurs(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, errStopping) || errors.Is(err, errOver)
}

// pause gives the library a moment to notice a broken connection.
func (c caller) pause() error {
	if !c.session.driver.life.Sleep(c.ctx, c.session.patience()/20) {
		return errNoAnswer
	}
	return nil
}

// listing is the list of a node's children.
type listing struct {
	children []string
	stat     gozk.Stat
}

// first returns the oldest child with a prefix, or "".
func (l listing) first(prefix string) (first string) {
	var least contender
	for _, child := range l.children {
		if c, ok := contenderOf(child); ok && strings.HasPrefix(child, prefix) && (first == "" || c.before(least)) {
			first, least = child, c
		}
	}
	return first
}

// list reads the children of a node.
func (c caller) list(path string) (listing, error) {
	return query(c, func(c *gozk.Conn) (listing, error) { return list(c, path) })
}

// listSynced is like list, but sees all earlier transactions.
func (c caller) listSynced(path string) (listing, error) {
	return query(c, func(c *gozk.Conn) (listing, error) { return listSynced(c, path) })
}

// get reads the data of a node.
func (c caller) get(path string) ([]byte, error) {
	return query(c, func(c *gozk.Conn) ([]byte, error) {
		text, _, err := c.Get(path)
		return text, err
	})
}

func list(c *gozk.Conn, path string) (listing, error) {
	children, stat, err := c.Children(path)
	if err != nil {
		return listing{}, err
	}
	return listing{children, *stat}, nil
}

func listSynced(c *gozk.Conn, path string) (listing, error) {
	if _, err := c.Sync(path); err != nil {
		return listing{}, err
	}
	return list(c, path)
}

func remove(c *gozk.Conn, node string) (struct{}, error) { return struct{}{}, c.Delete(node, -1) }

// removeOwn is like remove, but for a node that the session has created.
func removeOwn(c *gozk.Conn, node string) (struct{}, error) {
	return struct{}{}, ofOwn(c.Delete(node, -1))
}

// ofOwn returns the error of a request to remove an ephemeral node of the
// session. Such a node has no children, so a node with children has replaced
// it.
func ofOwn(err error) error {
	if errors.Is(err, gozk.ErrNotEmpty) {
		return gozk.ErrNoNode
	}
	return err
}

// maxTogether is the maximum number of nodes in one request.
const maxTogether = 100
