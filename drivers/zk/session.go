package zk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
	sessions "github.com/go-dsync/dsync/internal/session"
)

const (
	// an unused session ends after this time, except the oldest one of the
	// usual TTL
	idleFor    = 5 * time.Minute
	sendBuffer = 256 << 10 // limit of the library for one request
	maxAnswer  = 64 << 20  // room for the names of a million contenders; a longer answer is invalid
	fixedExtra = 4         // see class

	// maxWelcomeFor is the longest welcomeFor. maxCutOff is the maximum number
	// of times that it doubles.
	maxWelcomeFor = 8 * time.Second
	maxCutOff     = 8

	// usualMaxPaths limits the total length of the paths of a session's nodes,
	// in bytes. The transaction that ends a session lists all these paths.
	// Servers store a transaction of any size, but cannot read one of more than
	// twice jute.maxbuffer, which is 2 MiB by default. After a larger
	// transaction no server of the ensemble could start again.
	usualMaxPaths = 512 << 10

	// pathExtra is the number of bytes that each path adds to the transaction
	// in addition to its own length.
	pathExtra = 4
)

// session carries locks of one TTL. The library keeps the session alive every
// third of the TTL, and keep determines how long the session is guaranteed to
// last. Once this end has passed, the driver gives up the session. From then on
// the only request is the one to end the session.
type session struct {
	sessions.Frame
	driver *Driver
	class  time.Duration // the timeout to request
	conn   *gozk.Conn
	events <-chan gozk.Event // closed when the library's goroutines have ended
	online context.Context   // ends when no more connections may be made
	cut    context.CancelFunc
	joined chan struct{} // buffered; signaled when there is a new connection
	calls  sync.WaitGroup

	passwords []string // used to authenticate; owned by start, and then by authenticateAgain

	changing sync.WaitGroup // requests that change something; none are added once dead is set

	confirmation confirmation

	timeout  atomic.Int64 // as the server granted, or less
	lastSent atomic.Int64
	zxid     atomic.Int64 // the last transaction in an answer
	gone     atomic.Bool  // the server has ended the session
	confused atomic.Bool  // the last connection ended because of an invalid answer
	heard    atomic.Int64 // when the server last sent anything
	nudging  atomic.Bool
	hangFor  atomic.Int64         // see hangLimit
	current  atomic.Pointer[link] // the last link with a granted session
	link     atomic.Pointer[link] // for direct requests; nil if there is none

	mu       sync.Mutex
	up       chan struct{} // closed while there is a connection
	room     chan struct{} // closed while fewer than maxUnderway requests are under way
	underway int           // unanswered requests of the library
	last     error         // the reason why the last connection could not be made
	links    map[*link]struct{}
	dead     bool // the session accepts no more holds
	lost     bool // if dead is set: the session ended, and was not closed
	closing  bool // the session accepts no more calls
	checking bool // a round of check is under way
	nodes    map[string]*hold
	fresh    linked.List[hold, *hold] // holds that were granted and are not watched yet
	watches  map[string]*watch        // watches of waiters, by node
	left     []*claim                 // claims of requests that Close has ended
	removing map[string]struct{}      // nodes of names that removeNameNode is about to remove
}

// board returns a session of a class, with the caller as one of its users.
// paths is the number of bytes in the paths of the caller's nodes.
func (d *Driver) board(ctx context.Context, class time.Duration, paths int) (*session, error) {
	for {
		s, err := d.sessions.Board(ctx, class, paths)
		if err != nil {
			if s != nil {
				err = s.caller(ctx).explain(errNoAnswer)
			}
			return nil, err
		}
		s.mu.Lock()
		room := s.room
		s.mu.Unlock()
		select {
		case <-room:
			return s, nil
		case <-s.Over():
		case <-ctx.Done():
			err = s.caller(ctx).explain(errNoAnswer)
		case <-d.life.Open().Done():
			err = driver.ErrClosed
		}
		s.Leave(paths)
		if err != nil {
			return nil, err
		}
	}
}

// class returns the timeout of the session for a request. Leases that end by
// themselves may have any TTL. To limit the number of sessions, class rounds
// their timeouts up by a small fraction of the TTL (see fixedExtra).
func (d *Driver) class(r *driver.Request) time.Duration {
	if !r.Fixed || r.TTL == d.options.TTL {
		return r.TTL
	}
	step := time.Millisecond
	for step*2*fixedExtra <= r.TTL {
		step *= 2
	}
	return min(max((r.TTL+step-1)/step*step, d.minTTL), d.maxTTL)
}

func newSession(d *Driver, class time.Duration) *session {
	s := &session{
		driver:   d,
		class:    class,
		joined:   make(chan struct{}, 1),
		up:       make(chan struct{}),
		room:     make(chan struct{}),
		links:    make(map[*link]struct{}),
		nodes:    make(map[string]*hold),
		watches:  make(map[string]*watch),
		removing: make(map[string]struct{}),
	}
	s.online, s.cut = context.WithCancel(d.life.Context())
	s.timeout.Store(int64(class))
	close(s.room)
	return s
}

// patience returns the time that one server may take to answer an attempt to
// connect.
func (s *session) patience() time.Duration {
	return min(max(time.Duration(s.timeout.Load())/6, 50*time.Millisecond), time.Second)
}

// welcomeFor returns the time that a server may take to answer the request for
// the session. An abandoned request for a new session leaves a session behind
// on a slow server, and makes that server even slower. So the time doubles with
// each such request, for all sessions of the driver.
func (s *session) welcomeFor() time.Duration {
	usual := s.patience()
	if s.End.At() != 0 {
		return usual
	}
	return max(usual, min(usual<<s.driver.cutOff.Load(), maxWelcomeFor))
}

// tooSlow records that a server did not answer the request for the session in
// time.
func (s *session) tooSlow(waited int64) {
	if cutOff := &s.driver.cutOff; s.End.At() == 0 && waited >= int64(s.patience()) && cutOff.Load() < maxCutOff {
		cutOff.Add(1)
	}
}

// Tend implements session.Member.
func (s *session) Tend() time.Duration {
	now := s.driver.now()
	wait := time.Duration(s.End.At() - now)
	if due, ok := s.checkFresh(now); ok {
		wait = min(wait, time.Duration(due-now))
	}
	return max(wait, time.Millisecond)
}

// Start implements session.Member.
func (s *session) Start() error {
	if err := s.start(); err != nil {
		return err
	}
	if !s.driver.life.Go(s.keep) || s.driver.options.Passwords != nil && !s.driver.life.Go(s.authenticateAgain) {
		return driver.ErrClosed
	}
	return nil
}

// start creates the session on a server.
func (s *session) start() error {
	d := s.driver
	var err error
	s.conn, s.events, err = gozk.Connect(d.hosts, s.class, gozk.WithDialer(s.dial), gozk.WithHostProvider(&servers{session: s}),
		gozk.WithEventCallback(s.event), gozk.WithLogger(silent{}), gozk.WithLogInfo(false),
		gozk.WithMaxConnBufferSize(sendBuffer), gozk.WithMaxBufferSize(maxAnswer))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.life.Open(), max(sessionFor, 2*s.welcomeFor()))
	defer cancel()
	c := caller{session: s, ctx: ctx}
	if err := c.await(); err != nil {
		return d.startFault(s, err)
	}
	if granted := time.Duration(s.timeout.Load()); granted > s.class {
		return fmt.Errorf("TTL %v is below this server's minimum for sessions, %v: %w", s.class, granted, errors.ErrUnsupported)
	}
	err = s.authenticate(c)
	switch {
	case errors.Is(err, gozk.ErrAuthFailed):
		return fmt.Errorf("%w: user %q: %w", fs.ErrPermission, d.options.User, err)
	case err != nil && !errors.Is(err, driver.ErrUnavailable):
		return d.startFault(s, err)
	}
	return err
}

// authenticate authenticates with the passwords that the session has not used
// yet. The library repeats them on each new connection.
func (s *session) authenticate(c caller) error {
	o := &s.driver.options
	passwords := []string{o.Password}
	if o.Passwords != nil {
		var err error
		if passwords, err = o.Passwords(c.ctx); err != nil || len(passwords) == 0 {
			return fmt.Errorf("%w: passwords of user %q: %w", driver.ErrUnavailable, o.User, cmp.Or(err, errors.New("no passwords")))
		}
	} else if o.User == "" {
		return nil
	}
	for _, password := range passwords {
		if slices.Contains(s.passwords, password) {
			continue
		}
		credentials := []byte(o.User + ":" + password)
		if _, err := query(c, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, c.AddAuth("digest", credentials) }); err != nil {
			return err
		}
		s.passwords = append(s.passwords, password)
	}
	return nil
}

// authenticateAgain checks for additional passwords until the session has
// ended.
func (s *session) authenticateAgain() {
	tick := time.NewTicker(time.Duration(s.driver.passwordsEvery.Load()))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.Over():
			return
		}
		ctx, cancel := context.WithTimeout(s.online, attemptFor)
		_ = s.authenticate(caller{session: s, ctx: ctx}) // otherwise the next attempt authenticates
		cancel()
	}
}

func (d *Driver) startFault(s *session, err error) error {
	if d.life.Open().Err() != nil {
		return driver.ErrClosed
	}
	if cause := s.trouble(); cause != nil {
		err = cause
	}
	return fmt.Errorf("%w: %w: %w", driver.ErrUnavailable, errNoServer, err)
}

// silent is a Logger of the library.
type silent struct{}

func (silent) Printf(string, ...any) {}

// event is called by the library, in the reading goroutine.
func (s *session) event(e gozk.Event) {
	switch e.Type {
	case gozk.EventSession:
		switch e.State {
		case gozk.StateHasSession:
			s.setUp(true)
		case gozk.StateDisconnected:
			s.setUp(false)
		case gozk.StateExpired:
			s.gone.Store(true)
			s.setUp(false)
			s.Die(driver.ErrSessionEnded)
		}
	case gozk.EventNodeDeleted, gozk.EventNodeDataChanged:
		s.nodeChanged(e.Path, e.Type == gozk.EventNodeDeleted)
	case gozk.EventNodeChildrenChanged:
		s.wakeWaiters(e.Path)
	}
}

func (s *session) setUp(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.up:
		if !up {
			s.up = make(chan struct{})
		}
	default:
		if up {
			close(s.up)
			s.last = nil
			select {
			case s.joined <- struct{}{}:
			default:
			}
		}
	}
}

// failed records why there is no connection.
func (s *session) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
}

// trouble returns why there is no connection, if known.
func (s *session) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *session) remember(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead || s.online.Err() != nil {
		return false
	}
	s.links[l] = struct{}{}
	return true
}

func (s *session) forget(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
	s.link.CompareAndSwap(l, nil)
}

// opened handles the answer to the request for the session on a connection.
func (s *session) opened(sent, now int64, timeout time.Duration) {
	s.timeout.Store(int64(timeout))
	made := s.End.At() == 0
	alive := s.confirmation.opened(sent, now, int64(s.pace()), made)
	if made {
		s.End.Begin(s.endAfter(alive))
	} else {
		s.extend(alive)
	}
}

// ttl is the TTL of the session as both the server and the driver count it.
func (s *session) ttl() time.Duration { return min(time.Duration(s.timeout.Load()), s.class) }

// endAfter returns the end of a session that is alive at a given time, and not
// known to be alive later.
func (s *session) endAfter(alive int64) int64 { return alive + int64(s.ttl()) }

// extend moves the end of a session that is alive at a given time.
func (s *session) extend(alive int64) { s.End.Extend(s.driver.now(), s.endAfter(alive)) }

// saw records a committed transaction.
func (s *session) saw(zxid int64) {
	for {
		old := s.zxid.Load()
		if zxid <= old || s.zxid.CompareAndSwap(old, zxid) {
			return
		}
	}
}

// Lose implements session.Member. The waiters of the session start again.
func (s *session) Lose(cause error) {
	s.mu.Lock()
	s.dead, s.lost = true, cause != nil
	holds := slices.Collect(maps.Values(s.nodes))
	clear(s.nodes)
	s.fresh.Take()
	s.mu.Unlock()
	if cause == nil {
		return
	}
	for _, h := range holds {
		if h.lose(cause) {
			h.request.Events.Lost(cause)
		}
	}
}

// Bury implements session.Member. It ends the library's goroutines as well.
func (s *session) Bury() {
	defer s.cut()
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	if s.conn != nil {
		if !lost { // the library drops the answers of all requests when it ends the session
			s.within(leaveFor, s.changing.Wait)
		}
		closed := s.within(attemptFor, s.conn.Close) // ends soon after the connections
		s.cut()
		s.breakLinks()
		<-closed
		for range s.events {
		}
	}
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.calls.Wait()
}

// within runs f in a goroutine. It returns when f has returned, after bound, or
// when no more connections are to be made.
func (s *session) within(bound time.Duration, f func()) (done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		f()
		close(ended)
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-s.online.Done():
	}
	return ended
}

func (s *session) breakLinks() {
	s.mu.Lock()
	links := slices.Collect(maps.Keys(s.links))
	s.mu.Unlock()
	for _, l := range links {
		l.Close()
	}
}
