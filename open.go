package dsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/telemetry"
)

// Open connects to the backend of a URL, as in "memory://" or "redisson://user:password@host:6379/0?ttl=10s". The package
// of the driver has to be imported, and registers its scheme. Its errors do not contain the password.
//
// While the backend is out of reach, as when a program starts before its
// database, or when the connection breaks before the backend has answered, Open
// tries again until ctx is done, and tells the Logger once. So give ctx a
// deadline. All other errors, such as a wrong password, return at once.
//
// These parameters are common to all drivers: ttl=30s (Options.TTL), require=fair,fifo,fenced,rw,permits (what the backend has to promise),
// fenced=false (no fencing tokens, and nothing kept for them on the backend), and floor=1000 (Options.Floor).
func Open(ctx context.Context, url string, o *Options) (*Client, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	d, config, err := openDriver(ctx, url, &opts)
	if err != nil {
		return nil, fmt.Errorf("dsync: open: %w", err)
	}
	opts.TTL = config.TTL
	if config.URL.Has("floor") {
		opts.Floor = config.Floor
	}
	c, err := New(d, &opts)
	if err != nil {
		return nil, errors.Join(err, d.Close(ctx))
	}
	return c, nil
}

// openDriver tries until the backend is in reach, or ctx is done.
func openDriver(ctx context.Context, url string, o *Options) (driver.Driver, *driver.Config, error) {
	var trouble error // of the attempt before
	for pause := 10 * firstRetry; ; pause = min(2*pause, lastRetry) {
		d, config, err := driver.OpenTTL(ctx, url, o.TTL)
		switch {
		case err == nil:
			return d, config, nil
		case ctx.Err() != nil && trouble != nil:
			return nil, nil, fmt.Errorf("%w; before that: %w", ctx.Err(), trouble)
		case ctx.Err() != nil || !transient(err):
			return nil, nil, err
		case trouble == nil && o.Logger != nil:
			telemetry.LogOpen(ctx, o.Logger, err, o.OmitNames || o.OmitOwners)
		}
		trouble = err
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, fmt.Errorf("%w; before that: %w", ctx.Err(), trouble)
		}
	}
}

// Ping asks the backend, and returns nil if the backend answers: for the readiness probe of a program that cannot work without its
// locks. Ping waits until ctx is done, and 5 s at most. If the backend has no way to be asked, Ping returns errors.ErrUnsupported.
//
// An answer says that a lock can be asked for, and not that the rights of the user are enough for one.
func (c *Client) Ping(ctx context.Context) error {
	switch {
	case c.isClosed():
		return fmt.Errorf("dsync: ping: %w", ErrClosed)
	case c.reach.ask == nil:
		return fmt.Errorf("dsync: ping: %w", errors.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, maxReleaseWait)
	defer cancel()
	began := c.clock.plain()
	err := c.reach.ask(ctx, c.reach.question())
	if err := c.reach.pinged(ctx, began, err); err != nil {
		return fmt.Errorf("dsync: ping: %w", err)
	}
	return nil
}
