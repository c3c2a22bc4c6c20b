package zk

import (
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
)

const (
	idleFor    = 5 * time.Minute // an empty session ends after so long, except the oldest one of the usual TTL
	sendBuffer = 256 << 10       // of the library, for one request
	maxAnswer  = 64 << 20        // the names of a million contenders; a greater length is wrong
	fixedExtra = 4               // see class

	// maxWelcomeFor is the longest welcomeFor, and maxCutOff how often it
	// doubles at most.
	maxWelcomeFor = 8 * time.Second
	maxCutOff     = 8

	// usualMaxPaths bounds the paths of the nodes of a session, in bytes. The
	// transaction that ends a session lists all these paths. Servers store it
	// whatever its size, but cannot read a transaction of more than twice
	// jute.maxbuffer, which is 2 MiB by default: no server of the ensemble
	// starts again.
	usualMaxPaths = 512 << 10

	// pathExtra is what the transaction needs for each path besides.
	pathExtra = 4
)

// session carries locks of one TTL. The library keeps the session alive every
// third of the TTL, and keep learns until when the session lasts for sure. Once
// this end has passed, the session is given up: the only request from then on
// is the one to end the session.
type session struct {
	driver *Driver
	class  time.Duration // the timeout to ask for
	conn   *gozk.Conn
	events <-chan gozk.Event // closed when the library's goroutines have ended
	online context.Context   // ends when no more connections are to be made
	cut    context.CancelFunc
	ready  chan struct{} // closed when conn may be used, or err is set
	err    error
	over   chan struct{} // closed when dead is set
	buried chan struct{} // closed when the session has ended here, and at the server if gone is set
	kick   chan struct{} // buffered; signaled when run has to look
	joined chan struct{} // buffered; signaled when there is a new connection
	calls  sync.WaitGroup

	changing sync.WaitGroup // requests that change something; nobody adds to it once dead is set

	confirmation confirmation

	timeout  atomic.Int64 // as the server granted, or less
	expires  atomic.Int64 // odd once seen to have passed
	lastSent atomic.Int64
	zxid     atomic.Int64 // the last transaction in an answer
	gone     atomic.Bool  // the server has ended the session
	confused atomic.Bool  // the last connection ended because the server made no sense
	heard    atomic.Int64 // when the server said anything
	nudging  atomic.Bool
	hangFor  atomic.Int64         // see hangLimit
	current  atomic.Pointer[link] // the last link with a granted session
	link     atomic.Pointer[link] // for direct requests; nil where there is none

	mu       sync.Mutex
	up       chan struct{} // closed while there is a connection
	room     chan struct{} // closed while fewer than maxUnderway requests are under way
	underway int           // requests of the library without an answer
	last     error         // why the last connection could not be made
	links    map[*link]struct{}
	users    int // attempts and holds
	paths    int // bytes of the paths of their nodes and of ghosts, at most usualMaxPaths
	retired  bool
	dead     bool
	lost     bool  // with dead: the session ended, and was not closed
	closing  bool  // no more calls
	checking bool  // a round of check is under way
	idle     int64 // since when there are no users
	nodes    map[string]*hold
	fresh    linked.List[hold, *hold] // granted, and not watched yet
	watches  map[string]*watch        // of waiters, by node
	left     []*claim                 // of requests that Close has ended
	removing map[string]struct{}      // nodes of names that removeNameNode is about to remove
}

// board returns a session of a class, with the caller as one of its users.
func (d *Driver) board(ctx context.Context, class time.Duration) (*session, error) {
	return d.boardWith(ctx, class, 0)
}

// boardWith is board for a caller whose nodes have paths of so many bytes.
func (d *Driver) boardWith(ctx context.Context, class time.Duration, paths int) (*session, error) {
	for {
		s, err := d.boardOnce(ctx, class, paths)
		if s != nil || err != nil {
			return s, err
		}
	}
}

// boardOnce returns nil, nil for a session that turned out to be over.
func (d *Driver) boardOnce(ctx context.Context, class time.Duration, paths int) (*session, error) {
	d.mu.Lock()
	s := d.sessionFor(class, paths)
	if s == nil {
		s = newSession(d, class)
		if d.life.Open().Err() != nil || !d.life.Go(s.run) {
			d.mu.Unlock()
			s.cut()
			return nil, driver.ErrClosed
		}
		d.sessions[class] = append(d.sessions[class], s)
		d.all[s] = struct{}{}
	}
	s.mu.Lock()
	s.users++
	s.paths += paths
	room := s.room
	s.mu.Unlock()
	d.mu.Unlock()
	for _, open := range [...]<-chan struct{}{s.ready, room} {
		select {
		case <-open:
		case <-ctx.Done():
			err := s.caller(ctx).explain(errNoAnswer)
			s.leaveWith(paths)
			return nil, err
		case <-d.life.Open().Done():
			s.leaveWith(paths)
			return nil, driver.ErrClosed
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	if s.hasExpired(d.now()) {
		s.die(driver.ErrSessionEnded)
	}
	if s.isDead() {
		s.leaveWith(paths)
		return nil, nil
	}
	return s, nil
}

// sessionFor returns the first open session of a class that has room for paths
// of so many bytes, or nil. A session without nodes has room for those of any
// request. d.mu is held.
func (d *Driver) sessionFor(class time.Duration, paths int) *session {
	for _, s := range d.sessions[class] {
		s.mu.Lock()
		has := s.paths
		s.mu.Unlock()
		if paths == 0 || has == 0 || has+paths <= d.maxPaths {
			return s
		}
	}
	return nil
}

// class returns the timeout of the session for a request. Leases that end by themselves have TTLs of all kinds: so that there are not
// too many sessions for them, theirs are a little longer, by less than fixedExtra of the TTL.
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
		driver:  d,
		class:   class,
		ready:   make(chan struct{}),
		over:    make(chan struct{}),
		buried:  make(chan struct{}),
		kick:    make(chan struct{}, 1),
		joined:  make(chan struct{}, 1),
		up:      make(chan struct{}),
		room:    make(chan struct{}),
		links:   make(map[*link]struct{}),
		nodes:   make(map[string]*hold),
		watches: make(map[string]*watch),
		idle:    d.now(),

		removing: make(map[string]struct{}),
	}
	s.online, s.cut = context.WithCancel(d.life.Context())
	s.timeout.Store(int64(class))
	close(s.room)
	return s
}

// patience is how long one server may take to answer an attempt to connect.
func (s *session) patience() time.Duration {
	return min(max(time.Duration(s.timeout.Load())/6, 50*time.Millisecond), time.Second)
}

// welcomeFor is how long a server may take to answer the request for the
// session. A request for a new session that is cut off leaves one at a slow
// server, which gets slower by it. So the time doubles with each, for all
// sessions of the driver.
func (s *session) welcomeFor() time.Duration {
	usual := s.patience()
	if s.expires.Load() != 0 {
		return usual
	}
	return max(usual, min(usual<<s.driver.cutOff.Load(), maxWelcomeFor))
}

// tooSlow takes note of a server that did not answer the request for the
// session in time.
func (s *session) tooSlow(waited int64) {
	if cutOff := &s.driver.cutOff; s.expires.Load() == 0 && waited >= int64(s.patience()) && cutOff.Load() < maxCutOff {
		cutOff.Add(1)
	}
}

// leave ends what board began.
func (s *session) leave() { s.leaveWith(0) }

// leaveWith ends what boardWith began.
func (s *session) leaveWith(paths int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths -= paths
	if s.users--; s.users == 0 {
		s.idle = s.driver.now()
		if s.retired {
			s.look()
		}
	}
}

func (s *session) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// look makes run look at the session.
func (s *session) look() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// retire lets no more users in. When the last of them has left, the session is closed, and takes along the nodes that no request is sure to
// remove.
func (s *session) retire() {
	s.unlist()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.look()
}

func (s *session) unlist() {
	d := s.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	d.strike(s)
}

// strike takes a session off the list of those that are open. d.mu is held.
func (d *Driver) strike(s *session) {
	left := slices.DeleteFunc(d.sessions[s.class], func(other *session) bool { return other == s })
	if len(left) == 0 {
		delete(d.sessions, s.class)
	} else {
		d.sessions[s.class] = left
	}
}

// run ends with the session.
func (s *session) run() {
	s.err = s.start()
	if s.err != nil {
		s.unlist()
		close(s.ready)
		s.die(driver.ErrSessionEnded)
		return
	}
	close(s.ready)
	if !s.driver.life.Go(s.keep) {
		s.die(driver.ErrSessionEnded) // the driver is being closed
		return
	}
	timer := time.NewTimer(s.untilDue())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.kick:
		case <-s.over:
			return
		}
		if s.hasExpired(s.driver.now()) || s.useless() {
			s.die(driver.ErrSessionEnded)
			return
		}
		timer.Reset(s.untilDue())
	}
}

// untilDue is how long nothing has to be done, after it has been.
func (s *session) untilDue() time.Duration {
	now := s.driver.now()
	wait := time.Duration(s.expires.Load() - now)
	if due, ok := s.checkFresh(now); ok {
		wait = min(wait, time.Duration(due-now))
	}
	return max(wait, time.Millisecond)
}

// start makes the session at a server.
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
		return fmt.Errorf("TTL %v is below the %v from which this server keeps sessions: %w", s.class, granted, errors.ErrUnsupported)
	}
	if d.options.User == "" {
		return nil
	}
	credentials := []byte(d.options.User + ":" + d.options.Password)
	_, err = query(c, func(c *gozk.Conn) (struct{}, error) { return struct{}{}, c.AddAuth("digest", credentials) })
	if errors.Is(err, gozk.ErrAuthFailed) {
		return fmt.Errorf("%w: user %q: %w", fs.ErrPermission, d.options.User, err)
	}
	if err != nil {
		return d.startFault(s, err)
	}
	return nil
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
			s.die(driver.ErrSessionEnded)
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

// failed takes note of why there is no connection.
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

// opened takes the answer to the request for the session on a connection.
func (s *session) opened(sent, now int64, timeout time.Duration) {
	s.timeout.Store(int64(timeout))
	made := s.expires.Load() == 0
	alive := s.confirmation.opened(sent, now, int64(s.pace()), made)
	if made {
		s.expires.Store(s.endAfter(alive))
	} else {
		s.extend(alive)
	}
}

// ttl is the TTL of the session by the counts of both the server and the driver.
func (s *session) ttl() time.Duration { return min(time.Duration(s.timeout.Load()), s.class) }

// endAfter is the end of a session that is alive at a time, and not known to be alive later: an even number.
func (s *session) endAfter(alive int64) int64 { return (alive + int64(s.ttl())) &^ 1 }

// extend moves the end of a session that is alive at a time, unless the end has passed.
func (s *session) extend(alive int64) {
	end := s.endAfter(alive)
	for {
		old := s.expires.Load()
		if old&1 != 0 || end <= old || s.driver.now() >= old {
			return
		}
		if s.expires.CompareAndSwap(old, end) {
			return
		}
	}
}

// hasExpired reports whether the end of the session has passed. An end that was seen to have passed does not move any more.
func (s *session) hasExpired(now int64) bool {
	for {
		end := s.expires.Load()
		switch {
		case end == 0: // there is no session yet
			return false
		case end&1 != 0:
			return true
		case now < end:
			return false
		}
		if s.expires.CompareAndSwap(end, end|1) {
			return true
		}
	}
}

// saw takes note of a committed transaction.
func (s *session) saw(zxid int64) {
	for {
		old := s.zxid.Load()
		if zxid <= old || s.zxid.CompareAndSwap(old, zxid) {
			return
		}
	}
}

// useless reports whether nobody needs the session any more, and retires it for good.
func (s *session) useless() bool {
	d := s.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	usual := s.class == d.options.TTL && len(d.sessions[s.class]) > 0 && d.sessions[s.class][0] == s
	if s.users > 0 || !s.retired && (usual || d.now()-s.idle < int64(idleFor)) {
		return false
	}
	s.retired = true
	d.strike(s) // so that nobody joins meanwhile
	return true
}

// die ends a session: its holds are lost by cause, and its waiters begin anew.
func (s *session) die(cause error) {
	holds := s.kill(true)
	for _, h := range holds {
		if h.lose(cause) {
			h.request.Events.Lost(cause)
		}
	}
}

// kill is die without a word to the holders. kill returns the holds, and notes whether they are lost by that.
func (s *session) kill(lost bool) []*hold {
	s.unlist()
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return nil
	}
	s.dead, s.lost = true, lost
	close(s.over)
	holds := slices.Collect(maps.Values(s.nodes))
	clear(s.nodes)
	s.fresh.Take()
	s.mu.Unlock()
	if !s.driver.life.Go(s.bury) {
		s.cut()
		close(s.buried)
	}
	return holds
}

// bury ends the session at the server, if in reach, and the library's goroutines.
func (s *session) bury() {
	defer s.cut()
	<-s.ready
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
	close(s.buried)
	d := s.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, s)
}

// within runs f in a goroutine, and returns when f has, at the latest after
// bound or when no more connections are to be made.
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
	links := make([]*link, 0, len(s.links))
	for l := range s.links {
		links = append(links, l)
	}
	s.mu.Unlock()
	for _, l := range links {
		l.Close()
	}
}
