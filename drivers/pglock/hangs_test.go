package pglock_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// dayTTL is a TTL that outlasts every test.
const dayTTL = 24 * time.Hour

// movable is a driver with the TTL of a day, whose address can lead elsewhere.
type movable struct {
	*pglock.Driver
	link  *wire.Wire             // of the connections so far
	addr  atomic.Pointer[string] // for new connections
	conns chan *counted          // all of them
}

// counted counts the bytes that were read.
type counted struct {
	net.Conn
	read atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

func newMovable(t *testing.T, pg *testenv.PostgresServer) *movable {
	t.Helper()
	m := &movable{conns: make(chan *counted, 100)}
	var addr string
	m.link, addr = testenv.Wire(t, pg.Addr)
	m.addr.Store(&addr)
	config, err := pgx.ParseConfig("postgres://postgres@" + pg.Addr + "/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, *m.addr.Load())
		if err != nil {
			return nil, err
		}
		c := &counted{Conn: conn}
		m.conns <- c
		return c, nil
	}
	if m.Driver, err = pglock.New(t.Context(), config, &pglock.Options{TTL: dayTTL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDriver(t, m.Driver) })
	return m
}

// hanging returns a driver, and a function that makes all of its connections
// hang. New connections work.
func hanging(t *testing.T, pg *testenv.PostgresServer) (d *pglock.Driver, hang func() *wire.Wire) {
	t.Helper()
	m := newMovable(t, pg)
	return m.Driver, func() *wire.Wire {
		m.addr.Store(&pg.Addr)
		m.link.Hold(wire.Both)
		return m.link
	}
}

// acquire tries again after transient errors, as package dsync does, for much
// less than the TTL.
func acquire(t *testing.T, d driver.Driver, name string) driver.Lease {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		l, err := d.Acquire(ctx, request(name, dayTTL))
		if err == nil {
			t.Logf("%q is granted after %v", name, time.Since(began))
			return l
		}
		if ctx.Err() != nil || !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrUnavailable) {
			t.Fatalf("Acquire: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func notLost(t *testing.T, r *driver.Request) {
	t.Helper()
	select {
	case err := <-r.Events.(*events).lost:
		t.Errorf("the holder has lost %q: %v", r.Name, err)
	default:
	}
}

func testHangingLock(t *testing.T, pg *testenv.PostgresServer) {
	d, hang := hanging(t, pg)
	mustRelease(t, acquire(t, d, "idle"))
	hang()
	mustRelease(t, acquire(t, d, "idle"))
}

// testHangingHold makes a connection with a hold hang. The hold stays, and
// other holds are made on other connections.
func testHangingHold(t *testing.T, pg *testenv.PostgresServer) {
	d, hang := hanging(t, pg)
	r := request("held", dayTTL)
	l := mustAcquire(t, d, r)
	link := hang()
	mustRelease(t, acquire(t, d, "other"))
	mustRelease(t, acquire(t, d, "other"))
	notLost(t, r)
	link.Heal()
	mustRelease(t, l)
}

func testHangingWait(t *testing.T, pg *testenv.PostgresServer) {
	d, hang := hanging(t, pg)
	other, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	taken := mustAcquire(t, other, request("taken", longTTL))
	granted := make(chan driver.Lease)
	go func() {
		defer close(granted)
		granted <- acquire(t, d, "taken")
	}()
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
	hang()
	mustRelease(t, taken)
	if l := <-granted; l != nil {
		mustRelease(t, l)
	}
}

// testHangingRelease releases the only hold of a connection while the
// connection hangs.
func testHangingRelease(t *testing.T, pg *testenv.PostgresServer) {
	d, hang := hanging(t, pg)
	other := newDriver(t, pg.Addr, nil)
	l := mustAcquire(t, d, request("released", dayTTL))
	hang()
	began := time.Now()
	if err := l.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release: %v", err)
	}
	mustRelease(t, acquire(t, other, "released"))
	t.Logf("released %v after the request", time.Since(began))
}

func testHangingClose(t *testing.T, pg *testenv.PostgresServer) {
	d, hang := hanging(t, pg)
	other, conn := newDriver(t, pg.Addr, nil), connect(t, pg)
	taken := mustAcquire(t, other, request("taken", longTTL))
	mustAcquire(t, d, request("held", dayTTL))
	waited := make(chan error)
	go func() {
		_, err := d.Acquire(context.Background(), request("taken", dayTTL))
		waited <- err
	}()
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
	hang()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	t.Logf("closed after %v", time.Since(began))
	if err := <-waited; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("the waiter: got %v, want ErrClosed", err)
	}
	mustRelease(t, taken)
	if n := value[int](t, conn, advisoryLocks); n != 0 {
		t.Errorf("%d locks or waits are left on the server after Close", n)
	}
}

// TestFrozenServer also has a lock on a session for waits.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	url := "pglock://postgres@" + pg.Addr + "/postgres?sslmode=disable"
	c, err := dsync.Open(t.Context(), url, &dsync.Options{TTL: drivertest.FrozenTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	taken, conn := mustAcquire(t, newDriver(t, pg.Addr, nil), request("waited", longTTL)), connect(t, pg)
	granted := make(chan *dsync.Lease, 1)
	go func() {
		l, err := c.Lock(t.Context(), "waited")
		if err != nil {
			t.Error(err)
		}
		granted <- l
	}()
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
	mustRelease(t, taken)
	drivertest.FrozenServerCostsNoLock(t, url, pg.Freeze, pg.Thaw, <-granted)
}

// TestStandbyBehindTheAddress lets the address of the primary lead to a standby
// for a while, as during a failover.
func TestStandbyBehindTheAddress(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	replica := testenv.PostgresReplica(t, pg)
	d := newMovable(t, pg)
	r := request("held", dayTTL)
	l := mustAcquire(t, d, r)
	d.addr.Store(&replica.Addr)
	d.link.Cut()
	<-r.Events.(*events).lost
	if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Release: got %v, want ErrNotHeld", err)
	}
	if _, err := d.Acquire(t.Context(), try("held")); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Acquire on a standby: got %v, want ErrUnavailable", err)
	}
	d.addr.Store(&pg.Addr)
	mustRelease(t, acquire(t, d, "held"))
}

// testDiscardedSession has another party on the connection, such as a pooler,
// discard the state of the session: its locks, or also its prepared statements.
func testDiscardedSession(t *testing.T, pg *testenv.PostgresServer) {
	for i, statement := range []string{"DO 'BEGIN PERFORM pg_advisory_unlock_all(); END'", "DISCARD ALL"} {
		d, look := newMovable(t, pg), connect(t, pg)
		l := mustAcquire(t, d, request("held", dayTTL))
		reader := request("read", dayTTL)
		reader.Mode = driver.Read
		read := mustAcquire(t, d, reader)
		message, err := (&pgproto3.Query{String: statement}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		conn := <-d.conns
		before := conn.read.Load()
		if _, err := conn.Write(message); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, func() bool { return value[int](t, look, advisoryLocks) == 0 && conn.read.Load() > before }, "the locks are gone")
		for _, l := range []driver.Lease{l, read} {
			err := l.Release(t.Context())
			if !errors.Is(err, driver.ErrNotHeld) && (i == 0 || !errors.Is(err, driver.ErrUnknown)) { // no unlock could be sent
				t.Errorf("%s: Release: got %v, want ErrNotHeld", statement, err)
			}
		}
		mustRelease(t, acquire(t, d, "held"))
	}
}

// testTerminatedSessions ends the server's side of all sessions by hand, under
// a holder, a reader and a waiter.
func testTerminatedSessions(t *testing.T, pg *testenv.PostgresServer) {
	d, other, conn := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil), connect(t, pg)
	reading := request("read", longTTL)
	reading.Mode = driver.Read
	leases := []driver.Lease{mustAcquire(t, d, request("held", longTTL)), mustAcquire(t, d, reading)}
	granted := make(chan driver.Lease)
	go func() {
		defer close(granted)
		granted <- acquire(t, other, "held")
	}()
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
	value[int](t, conn, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
	for _, l := range leases {
		if err := l.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Release: got %v, want ErrNotHeld", err)
		}
	}
	if l := <-granted; l != nil {
		if err := l.Release(t.Context()); errors.Is(err, driver.ErrNotHeld) { // granted, and then terminated
			mustRelease(t, acquire(t, other, "held"))
		} else if err != nil {
			t.Errorf("Release of the waiter: %v", err)
		}
	}
	if err := d.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// reported is the Events of a holder, together with the reports of the driver.
type reported struct {
	*events
	failed, answered atomic.Int32
	before           atomic.Int32 // how many times failed was reported before Lost
}

func (r *reported) Lost(err error) {
	r.before.Store(r.failed.Load())
	r.events.Lost(err)
}

// testResetIsReported cuts the connection of a holder: the driver reports the
// outage before the loss. An end by the server is an answer and is not
// reported.
func testResetIsReported(t *testing.T, pg *testenv.PostgresServer) {
	for _, cut := range []bool{true, false} {
		d, conn := newMovable(t, pg), connect(t, pg)
		r := &reported{events: newEvents()}
		d.OnKeepAlive(func(err error) {
			if err != nil {
				r.failed.Add(1)
			} else {
				r.answered.Add(1)
			}
		})
		held := request("held", longTTL)
		held.Events = r
		mustAcquire(t, d, held)
		if cut {
			d.link.Cut()
		} else {
			value[int](t, conn, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'")
		}
		<-r.lost
		if got := r.before.Load(); got > 0 != cut {
			t.Errorf("cut %v: %d outages are reported before Lost", cut, got)
		}
		d.addr.Store(&pg.Addr)
		before := r.answered.Load()
		mustRelease(t, acquire(t, d, "other"))
		if cut && r.answered.Load() == before {
			t.Error("the end of the outage is not reported")
		}
	}
}
