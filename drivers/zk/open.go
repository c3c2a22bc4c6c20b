package zk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
	sessions "github.com/go-dsync/dsync/internal/session"
	"github.com/go-dsync/dsync/internal/tlsurl"
)

func init() { driver.Register("zk", open) }

// open is the driver.Opener of the scheme zk. The package comment lists the
// parameters.
func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	o := &Options{
		Chroot:      u.Path,
		TTL:         c.TTL,
		NoTokens:    !c.Fenced,
		FIFO:        u.Choice("order", "client", "fifo") == "fifo",
		LeaderLatch: u.Choice("node", "lock-", "latch-") == "latch-",
		NoteAlone:   u.Choice("value", "record", "note") == "note",
	}
	usual := "open"
	password := u.Password()
	if u.User != nil {
		o.User = u.User.Username()
		o.Password, _ = u.User.Password()
		usual = "creator"
	}
	var failed error
	if u.Has("password_file") && password != nil {
		o.Passwords = func(context.Context) ([]string, error) {
			text, err := password()
			return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), err
		}
		_, failed = o.Passwords(ctx)
	}
	if o.User == "" && (u.User != nil || password != nil) {
		failed = errors.New("zk URL: a password without a user")
	}
	acl := usual
	if u.Has("acl") {
		acl = u.Choice("acl", "open", "creator")
	}
	switch {
	case acl == "open":
		o.ACL = gozk.WorldACL(gozk.PermAll)
	case u.User == nil:
		failed = errors.New("zk URL: parameter acl: creator needs a user and a password")
	}
	var err error
	o.TLS, err = tlsurl.Read(u)
	if err := errors.Join(u.Err(), err, failed); err != nil {
		return nil, err
	}
	d, err := New(ctx, u.HostsWithPort("localhost", "2181"), o)
	if err != nil {
		return nil, fmt.Errorf("zk: %s: %w", u, err)
	}
	return d, nil
}

// New connects to one of the hosts ("host:port") and determines the limits of
// its session timeouts. New fails within ctx.
func New(ctx context.Context, hosts []string, o *Options) (*Driver, error) {
	if o == nil {
		o = &Options{}
	}
	d := &Driver{
		hosts:   slices.Clone(hosts),
		options: *o,
		epoch:   time.Now(),
		life:    lifecycle.New(),
		watched: make(map[string]*nameWatch),
		changes: changes{keptFor: usualKeptFor, locked: make(chan struct{}, 1)},
	}
	if err := d.options.check(); err != nil {
		return nil, err
	}
	if len(hosts) == 0 {
		return nil, errors.New("zk: no hosts")
	}
	d.host, _ = os.Hostname() // for people; a lock also works without a host
	d.sessions = sessions.NewPool(d.life, d.now, func(ttl time.Duration) *session { return newSession(d, ttl) })
	d.sessions.Policy = sessions.Policy{Idle: idleFor, MaxLoad: usualMaxPaths}
	d.ghosts = newCleaner(d)
	d.checkAfter.Store(int64(usualCheckAfter))
	d.nudgeAfter.Store(int64(usualNudgeAfter))
	d.hangAfter.Store(int64(usualHangAfter))
	d.passwordsEvery.Store(int64(usualPasswordsEvery))
	if err := d.connect(ctx); err != nil {
		_ = d.Close(ctx) // nothing is held yet, so an error of Close does not matter
		return nil, err
	}
	return d, nil
}

// check refuses invalid options and fills in the defaults.
func (o *Options) check() error {
	o.Chroot = strings.TrimSuffix(o.Chroot, "/")
	if err := checkChroot(o.Chroot); err != nil {
		return err
	}
	if o.User == "" && (o.Password != "" || o.Passwords != nil) {
		return errors.New("zk: a password without a user")
	}
	if o.Password != "" && o.Passwords != nil {
		return errors.New("zk: Options have both Password and Passwords")
	}
	if strings.Contains(o.User, ":") {
		return errors.New("zk: the user name contains a colon")
	}
	if o.TTL < 0 {
		return fmt.Errorf("zk: Options.TTL is %v, want 0 or more", o.TTL)
	}
	switch {
	case o.ACL != nil:
		o.ACL = slices.Clone(o.ACL)
	case o.User != "":
		o.ACL = gozk.AuthACL(gozk.PermAll)
	default:
		o.ACL = gozk.WorldACL(gozk.PermAll)
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	return nil
}

// connect determines the server's limits and creates the session for the usual
// TTL.
func (d *Driver) connect(ctx context.Context) error {
	var err error
	if d.minTTL, d.maxTTL, err = d.limits(ctx); err != nil {
		return err
	}
	if d.options.TTL == 0 {
		d.options.TTL = min(max(defaultTTL, d.minTTL), d.maxTTL)
	}
	if err := d.Info().CheckTTL(d.options.TTL); err != nil {
		return fmt.Errorf("%w (minSessionTimeout and maxSessionTimeout of the server)", err)
	}
	d.sessions.Usual = d.options.TTL
	return d.call(ctx, d.mayUse)
}

// mayUse checks whether the user may read the chroot. A missing chroot may be
// created later.
func (d *Driver) mayUse(c caller) error {
	path := cmp.Or(d.options.Chroot, "/")
	_, err := c.get(path)
	if err == nil || errors.Is(err, gozk.ErrNoNode) {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// Ping implements driver.Pinger. It reads the chroot to check whether the
// servers know the user, because they accept any password and only refuse
// access to other users' nodes.
func (d *Driver) Ping(ctx context.Context) error {
	err := d.call(ctx, d.mayUse)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", driver.ErrCredentials, err)
	}
	return err
}

// errNoSession is the error for a session that ended before its server granted
// it. On a busy server this may happen to the shortest sessions.
var errNoSession = errors.New("the server grants no session")

// limits determines the shortest and the longest timeout of a session on the
// first server that answers. No request returns them, so limits creates and
// ends two sessions.
func (d *Driver) limits(ctx context.Context) (shortest, longest time.Duration, err error) {
	var failed error
	for failures := 0; ; failures++ {
		host := d.hosts[failures%len(d.hosts)]
		if shortest, err = d.timeoutFor(ctx, host, 1); err == nil {
			longest, err = d.timeoutFor(ctx, host, math.MaxInt32)
		}
		if err == nil {
			return shortest, longest, nil
		}
		if ctx.Err() == nil {
			failed = fmt.Errorf("%s: %w", host, err)
		}
		busy := errors.Is(err, io.EOF) || errors.Is(err, errNoSession)
		if failures+1 >= len(d.hosts) && !busy || !d.life.Sleep(ctx, 20*time.Millisecond) {
			if failed == nil {
				failed = err
			}
			return 0, 0, lifecycle.WithCause(ctx, driver.ErrUnavailable, failed)
		}
	}
}

// timeoutFor returns the timeout in milliseconds that a server grants for a
// requested timeout.
func (d *Driver) timeoutFor(ctx context.Context, host string, ask int32) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionFor)
	defer cancel()
	c, err := d.options.Dial(ctx, "tcp", host)
	if err == nil && d.options.TLS != nil {
		c, err = secure(ctx, c, host, d.options.TLS)
	}
	if err != nil {
		return 0, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	granted, err := handshake(c, ask)
	if ended := ctx.Err(); err != nil && ended != nil {
		err = ended
	}
	return granted, err
}

func handshake(c net.Conn, ask int32) (time.Duration, error) {
	// Version, last transaction, timeout, session, password.
	hello := binary.BigEndian.AppendUint32(nil, 4+8+4+8+4+16)
	hello = binary.BigEndian.AppendUint32(hello, 0)
	hello = binary.BigEndian.AppendUint64(hello, 0)
	hello = binary.BigEndian.AppendUint32(hello, uint32(ask))
	hello = binary.BigEndian.AppendUint64(hello, 0)
	hello = binary.BigEndian.AppendUint32(hello, 16)
	hello = append(hello, make([]byte, 16)...)
	// The request to end the session is sent at the same time, so that the
	// session does not outlast the connection by its timeout if ctx ends before
	// the answer.
	end := int32(opClose)
	hello = binary.BigEndian.AppendUint32(hello, 8)
	hello = binary.BigEndian.AppendUint32(hello, 1)
	hello = binary.BigEndian.AppendUint32(hello, uint32(end))
	if _, err := c.Write(hello); err != nil {
		return 0, err
	}
	var answer [12]byte // its length, version, timeout
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return 0, err
	}
	if size := binary.BigEndian.Uint32(answer[:]); size > maxWelcome {
		return 0, fmt.Errorf("%w: no ZooKeeper server", errAnswer)
	}
	granted := int32(binary.BigEndian.Uint32(answer[8:]))
	if granted <= 0 {
		return 0, errNoSession
	}
	_, err := io.Copy(io.Discard, c) // the server closes the connection when the session has ended
	if err != nil {
		return 0, err
	}
	return time.Duration(granted) * time.Millisecond, nil
}
