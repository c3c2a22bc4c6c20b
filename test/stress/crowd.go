package stress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// crowd is a group of goroutines of one client that hold or wait for locks on
// the orders of the cell.
type crowd struct {
	client *dsync.Client
	driver driver.Driver // the driver of the client
	held   map[string]*dsync.Lease

	waiting sync.WaitGroup
	started atomic.Int64
	limit   bool // the deadline ends the wait
	end     context.CancelFunc
	wrong   chan error // from waiters that did not return as they should have; one error is enough
}

// obey carries out an order and returns its duration in milliseconds, or -1 if
// the order could not be carried out.
func (c *crowd) obey(order string) (int64, error) {
	var kind, name string
	var n, ms int
	if _, err := fmt.Sscan(order, &kind, &name, &n, &ms); err != nil {
		return 0, err
	}
	start := time.Now()
	var err error
	switch kind {
	case "hold":
		c.held[name], err = c.lock(name)
	case "free":
		err = errors.Join(c.held[name].Err(), c.held[name].Unlock(context.Background()))
	case "take":
		var l *dsync.Lease
		if l, err = c.lock(name); err == nil {
			err = l.Unlock(context.Background())
		}
	case "wait":
		err = c.wait(name, n, time.Duration(ms)*time.Millisecond)
	case "settle": // until the queue is empty, as far as the backend reports
		for end := start.Add(crowdPatience); ; time.Sleep(50 * time.Millisecond) {
			var s driver.Status
			if s, err = c.inspect(name); err == nil && s.Waiters <= 0 {
				break
			}
			if time.Now().After(end) {
				err = fmt.Errorf("%d waiters are in the queue: %v", s.Waiters, err)
				break
			}
		}
	case "leave":
		if c.limit { // all at the same instant
			c.waiting.Wait()
		}
		c.end()
		c.waiting.Wait()
		select {
		case err = <-c.wrong:
		default:
		}
	default:
		return 0, fmt.Errorf("unknown order %q", order)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", order, err)
		return -1, nil
	}
	return time.Since(start).Milliseconds(), nil
}

// crowdPatience limits the wait of a member of a crowd. The failure is reported
// to the cell that gave the order.
const crowdPatience = 45 * time.Second

func (c *crowd) lock(name string) (*dsync.Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), crowdPatience)
	defer cancel()
	return c.client.Lock(ctx, name)
}

// wait makes n goroutines wait for a name that another client holds, until they
// are canceled or limit has passed. It returns when all of them are in the
// backend's queue. If the client sends one request for all of its waiters, they
// must be in the client's queue instead.
func (c *crowd) wait(name string, n int, limit time.Duration) error {
	var ctx context.Context
	c.limit = limit > 0
	if c.limit {
		ctx, c.end = context.WithTimeout(context.Background(), limit)
	} else {
		ctx, c.end = context.WithCancel(context.Background())
	}
	c.started.Store(0)
	for range n {
		c.waiting.Go(func() { // ends when ctx ends
			c.started.Add(1)
			l, err := c.client.Lock(ctx, name)
			if err == nil {
				err = errors.Join(errors.New("granted while another client holds it"), l.Unlock(context.Background()))
			} else if errors.Is(err, ctx.Err()) {
				return
			}
			select {
			case c.wrong <- err:
			default:
			}
		})
	}
	for end := time.Now().Add(crowdPatience); ; time.Sleep(50 * time.Millisecond) {
		there, err := c.inLine(name)
		if err == nil && there >= n {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d waiters are in the queue: %v", there, n, err)
		}
	}
}

func (c *crowd) inspect(name string) (driver.Status, error) {
	i, ok := c.driver.(driver.Inspector)
	if !ok {
		return driver.Status{}, errors.ErrUnsupported
	}
	return i.Inspect(context.Background(), name)
}

// inLine returns the number of waiters that the backend reports. If a client
// sends only one request for all of its waiters, all of them count as soon as
// they have started.
func (c *crowd) inLine(name string) (int, error) {
	s, err := c.inspect(name)
	if c.client.Info().Order == driver.FIFO {
		return s.Waiters, err
	}
	return int(c.started.Load()), err
}
