package stress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// Bugs that can be placed between package dsync and a driver, to check that the
// cells find them.
const (
	// A renewal that is concurrent with a release restores the hold, and
	// continues as long as the process lives.
	plantRenewal = "renewal outlives release"
	// The end of a lease is reported one TTL too late.
	plantLateLoss = "loss told after the TTL"
	// A waiter relies only on the message that announces a release. A dead
	// holder does not send this message.
	plantNoBackstop = "waiter without a back-stop timer"
	// A release frees a number of permits, regardless of their holder. A
	// repeated or late release then frees the permits of another holder.
	plantByNumber = "permits released by their number"
	// A leader remembers that it was elected and does not stop when its term is
	// lost. This bug is not in the driver; see campaign.
	plantFlag = "leader that does not stop after its loss"
)

// plant puts a bug into a driver of the Redis server at url.
func plant(bug string, d driver.Driver, url string) driver.Driver {
	switch bug {
	case "", plantFlag:
		return d
	case plantRenewal:
		return &revivingDriver{d}
	case plantLateLoss:
		return &lateDriver{d}
	case plantNoBackstop:
		host, _, _ := strings.Cut(strings.TrimPrefix(url, "redisson://"), "?")
		return &deafDriver{d, host}
	case plantByNumber:
		host, _, _ := strings.Cut(strings.TrimPrefix(url, "redisson://"), "?")
		return &countingDriver{d, host}
	}
	panic("unknown bug " + bug)
}

type revivingDriver struct{ driver.Driver }

func (d *revivingDriver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := d.Driver.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return &revivingLease{l, d.Driver, r}, nil
}

type revivingLease struct {
	driver.Lease
	d driver.Driver
	r *driver.Request
}

// Release releases the hold. One time in thirty, a renewal is in flight at that
// moment.
func (l *revivingLease) Release(ctx context.Context) error {
	err := l.Lease.Release(ctx)
	if err == nil && rand.IntN(30) == 0 {
		go l.renew() // ends when the process ends
	}
	return err
}

func (l *revivingLease) renew() {
	again := *l.r
	again.NoWait, again.Events = true, unheard{}
	revived, err := l.d.Acquire(context.Background(), &again)
	for err == nil {
		time.Sleep(TTL / 3)
		err = revived.Renew(context.Background(), TTL)
	}
}

// unheard implements the events of a request that the backend does not know.
type unheard struct{}

func (unheard) Waiting()    {}
func (unheard) Tokens() int { return 1 }
func (unheard) Lost(error)  {}

type lateDriver struct{ driver.Driver }

func (d *lateDriver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := d.Driver.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return lateLease{l}, nil
}

type lateLease struct{ driver.Lease }

func (l lateLease) Expires() time.Time { return l.Lease.Expires().Add(TTL) }

type deafDriver struct {
	driver.Driver
	addr string
}

func (d *deafDriver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if r.NoWait || r.Mode != driver.Exclusive { // other modes have other channels
		return d.Driver.Acquire(ctx, r)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", d.addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, "SUBSCRIBE redisson_lock__channel:{"+r.Name+"}\r\n"); err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	in := bufio.NewReader(conn)
	for waits := false; ; {
		once := *r
		once.NoWait = true
		l, err := d.Driver.Acquire(ctx, &once)
		if !errors.Is(err, driver.ErrLocked) {
			return l, err
		}
		if !waits {
			waits = true
			r.Events.Waiting()
		}
		if _, err := in.ReadString('*'); err != nil {
			return nil, errors.Join(err, ctx.Err(), driver.ErrLocked)
		}
	}
}

type countingDriver struct {
	driver.Driver
	addr string
}

func (d *countingDriver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := d.Driver.Acquire(ctx, r)
	if err != nil || r.Mode != driver.Permit {
		return l, err
	}
	return &countingLease{l, d, r.Name, r.Permits}, nil
}

type countingLease struct {
	driver.Lease
	d    *countingDriver
	name string
	n    int
}

// Release releases the permits. One time in ten, it releases them twice.
func (l *countingLease) Release(ctx context.Context) error {
	err := l.Lease.Release(ctx)
	if err == nil && rand.IntN(10) == 0 || errors.Is(err, driver.ErrNotHeld) {
		if conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.d.addr); err == nil {
			defer conn.Close()
			const script = "local taken = redis.call('ZPOPMIN', KEYS[1], ARGV[1]) redis.call('INCRBY', KEYS[2], #taken / 2)"
			fmt.Fprintf(conn, "EVAL \"%s\" 2 {%s}:timeout %s %d\r\nQUIT\r\n", script, l.name, l.name, l.n)
			_, _ = io.Copy(io.Discard, conn)
		}
	}
	return err
}
