package dsync_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// late is a backend that is out of reach for the first attempts.
var late struct {
	attempts, missing atomic.Int32
	err               error
}

func init() {
	driver.Register("tardy", func(ctx context.Context, c *driver.Config) (driver.Driver, error) {
		if err := c.URL.Err(); err != nil {
			return nil, err
		}
		if late.attempts.Add(1) <= late.missing.Load() {
			return nil, late.err
		}
		return memory.New(nil), nil
	})
}

func setLate(missing int32, err error) {
	late.attempts.Store(0)
	late.missing.Store(missing)
	late.err = err
}

func TestOpenWaitsForTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, kind := range []error{dsync.ErrUnavailable, dsync.ErrUnknown} {
			setLate(5, fmt.Errorf("%w: connection refused", kind))
			var log bytes.Buffer
			c, err := dsync.Open(t.Context(), "tardy://", &dsync.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if got := late.attempts.Load(); got != 6 {
				t.Errorf("%d attempts, want 6", got)
			}
			if got := strings.Count(log.String(), "connection refused"); got != 1 {
				t.Errorf("%d records of the outage, want 1:\n%s", got, log.String())
			}
		}
	})
}

func TestOpenGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		setLate(1000, fmt.Errorf("%w: connection refused", dsync.ErrUnavailable))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		_, err := dsync.Open(ctx, "tardy://", nil)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dsync.ErrUnavailable) || time.Since(began) != 10*time.Second {
			t.Errorf("Open: %v after %v, want the context's error and the reason after 10s", err, time.Since(began))
		}
		if got := late.attempts.Load(); got < 8 || got > 30 {
			t.Errorf("%d attempts in 10 s", got)
		}
	})
}

// TestOpenLogsByDefault waits without a Logger. A record goes to the default
// Logger if no deadline ends the wait.
func TestOpenLogsByDefault(t *testing.T) {
	old := slog.Default()
	defer slog.SetDefault(old)
	var log bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	synctest.Test(t, func(t *testing.T) {
		for _, bounded := range []bool{true, false} {
			log.Reset()
			setLate(5, fmt.Errorf("%w: connection refused", dsync.ErrUnavailable))
			ctx, cancel := context.WithCancel(t.Context())
			if bounded {
				ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			}
			c, err := dsync.Open(ctx, "tardy://", nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Close(ctx); err != nil {
				t.Error(err)
			}
			cancel()
			if logged := strings.Contains(log.String(), "connection refused"); logged == bounded {
				t.Errorf("deadline %t, logged %t:\n%s", bounded, logged, log.String())
			}
		}
	})
}

func TestOpenReturnsOtherErrorsAtOnce(t *testing.T) {
	wrong := errors.New("wrong password")
	setLate(1000, wrong)
	if _, err := dsync.Open(t.Context(), "tardy://", nil); !errors.Is(err, wrong) || late.attempts.Load() != 1 {
		t.Errorf("Open: %v after %d attempts, want %v after one attempt", err, late.attempts.Load(), wrong)
	}
}

func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(nil)
		c, err := dsync.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		d.Cut()
		if err := c.Ping(t.Context()); !errors.Is(err, dsync.ErrUnavailable) {
			t.Errorf("Ping of a backend out of reach: %v, want ErrUnavailable", err)
		}
		d.Inject(memory.Fault{Kind: memory.Hang})
		began := time.Now()
		if err := c.Ping(t.Context()); !errors.Is(err, dsync.ErrUnavailable) || time.Since(began) != 5*time.Second {
			t.Errorf("Ping of a silent backend: %v after %v, want ErrUnavailable after 5s", err, time.Since(began))
		}
		d.Heal()
		if err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Ping(t.Context()); !errors.Is(err, dsync.ErrClosed) {
			t.Errorf("Ping after Close: %v, want ErrClosed", err)
		}
	})
}

// pinger is a backend that should not be inspected.
type pinger struct {
	*memory.Driver
	pings, inspects atomic.Int64
	refuses         error
}

func (p *pinger) Ping(ctx context.Context) error {
	p.pings.Add(1)
	if p.refuses != nil {
		return p.refuses
	}
	_, err := p.Driver.Inspect(ctx, "x")
	return err
}

func (p *pinger) Inspect(ctx context.Context, name string) (driver.Status, error) {
	p.inspects.Add(1)
	return p.Driver.Inspect(ctx, name)
}

// TestPinger checks that Ping, and the probe of an outage, use the driver's
// Ping.
func TestPinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &pinger{Driver: memory.New(nil)}
		c, err := dsync.New(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ping(t.Context()); err != nil || d.pings.Load() != 1 {
			t.Errorf("Ping: %v, after %d pings of the driver, want 1", err, d.pings.Load())
		}
		d.Cut()
		if err := c.Ping(t.Context()); !errors.Is(err, dsync.ErrUnavailable) {
			t.Errorf("Ping of a backend out of reach: %v, want ErrUnavailable", err)
		}
		d.Heal()
		before := d.pings.Load()
		time.Sleep(time.Minute)
		if n := d.pings.Load() - before; n != 1 {
			t.Errorf("%d pings of the driver after the outage, want 1, which was answered", n)
		}
		if n := d.inspects.Load(); n != 0 {
			t.Errorf("the backend was inspected %d times", n)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestPingOfARefusedClient uses a server that refuses the user, or the name.
func TestPingOfARefusedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &pinger{Driver: memory.New(nil), refuses: fmt.Errorf("%w: wrong user", driver.ErrCredentials)}
		var log bytes.Buffer
		c, err := dsync.New(d, &dsync.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := c.Ping(t.Context()); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("Ping of a client that the server refuses: %v, want fs.ErrPermission", err)
			}
		}
		d.refuses = fmt.Errorf("%w: no right to read", fs.ErrPermission)
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("Ping without the right to query one name: %v", err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := strings.Count(log.String(), "backend refuses the client"); got != 1 {
			t.Errorf("%d records of the refusal, want 1:\n%s", got, log.String())
		}
	})
}

func TestPingOfABackendThatCannotBeAsked(t *testing.T) {
	if err := newStub(t, &stub{}).Ping(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Ping: %v, want ErrUnsupported", err)
	}
}
