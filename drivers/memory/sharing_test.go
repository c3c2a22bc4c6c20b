package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// crowd is a set of requests for one name. The first letter of a request's name
// is its mode, as in r1, w2 and x3.
type crowd struct {
	t       *testing.T
	server  *memory.Server
	leases  map[string]driver.Lease
	cancels map[string]context.CancelFunc
	granted chan grantOf
	attempt map[string]*attempt
	drivers map[string]*memory.Driver // by the last letter; otherwise one driver for each request
}

type grantOf struct {
	who   string
	lease driver.Lease
	err   error
}

func newCrowd(t *testing.T, o *memory.Options) *crowd {
	return &crowd{
		t: t, server: memory.NewServer(o), leases: map[string]driver.Lease{}, cancels: map[string]context.CancelFunc{},
		granted: make(chan grantOf, 100), attempt: map[string]*attempt{}, drivers: map[string]*memory.Driver{},
	}
}

// ask sends the requests one after another, and waits until each is granted or
// waiting.
func (c *crowd) ask(names ...string) {
	for _, who := range names {
		a := newAttempt("x")
		a.Mode = map[byte]driver.Mode{'r': driver.Read, 'w': driver.Write, 'x': driver.Exclusive}[who[0]]
		a.Owner = who
		d := c.drivers[who[len(who)-1:]]
		if d == nil {
			d = c.server.NewDriver()
		}
		ctx, cancel := context.WithCancel(c.t.Context())
		c.cancels[who], c.attempt[who] = cancel, a
		go func() { // ends when the lock is granted or ctx ends
			l, err := d.Acquire(ctx, &a.Request)
			c.granted <- grantOf{who, l, err}
		}()
		synctest.Wait()
	}
}

func (c *crowd) release(names ...string) {
	for _, who := range names {
		if err := c.leases[who].Release(context.Background()); err != nil {
			c.t.Errorf("release of %s: %v", who, err)
		}
		delete(c.leases, who)
	}
}

func (c *crowd) cancel(who string) {
	c.cancels[who]()
	synctest.Wait()
}

// expect checks which requests were granted since the last call.
func (c *crowd) expect(want ...string) {
	c.t.Helper()
	synctest.Wait()
	var got []string
	for len(c.granted) > 0 {
		g := <-c.granted
		if g.err == nil {
			c.leases[g.who] = g.lease
			got = append(got, g.who)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.t.Errorf("granted: %v, want %v", got, want)
	}
}

func (c *crowd) end() {
	for _, cancel := range c.cancels {
		cancel()
	}
	synctest.Wait()
	for len(c.granted) > 0 {
		if g := <-c.granted; g.err == nil {
			c.leases[g.who] = g.lease
		}
	}
	for _, l := range c.leases {
		l.Release(context.Background())
	}
	if n := c.server.Names(); n != 0 {
		c.t.Errorf("%d names left", n)
	}
}

func everyOrder(t *testing.T, test func(t *testing.T, o memory.Options)) {
	for _, o := range []memory.Options{
		{}, {Order: memory.FIFOByClient}, {Order: memory.Unordered}, {KeepsAlive: true}, {NoTokens: true},
	} {
		t.Run(fmt.Sprintf("order %d, keeps alive %v, no tokens %v", o.Order, o.KeepsAlive, o.NoTokens), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, o) })
		})
	}
}

func TestReadersShareAndWritersDoNot(t *testing.T) {
	everyOrder(t, func(t *testing.T, o memory.Options) {
		c := newCrowd(t, &o)
		defer c.end()
		for _, alone := range []string{"w", "x"} {
			c.ask(alone)
			c.expect(alone)
			c.ask("r1", "r2", "r3")
			c.expect()
			c.release(alone)
			c.expect("r1", "r2", "r3") // all readers
			c.ask("w1")
			c.release("r1", "r3")
			c.expect()
			c.release("r2") // the last reader
			c.expect("w1")
			c.ask("x1")
			c.expect()
			c.release("w1")
			c.expect("x1")
			c.release("x1")
		}
	})
}

func TestReaderDoesNotOvertakeWhoWaitsToWrite(t *testing.T) {
	everyOrder(t, func(t *testing.T, o memory.Options) {
		c := newCrowd(t, &o)
		defer c.end()
		c.ask("r1", "w1", "r2", "r3")
		c.expect("r1")
		if _, err := try(c.server.NewDriver(), "x"); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("error %v, want ErrLocked", err)
		}
		c.release("r1")
		c.expect("w1") // even without an order, because readers kept it waiting
		c.ask("w2")
		c.release("w1")
		if o.Order == memory.Unordered {
			return // the order is random
		}
		c.expect("r2", "r3")
		c.release("r2", "r3")
		c.expect("w2")
	})
}

func TestCanceledWriterHoldsNobodyUp(t *testing.T) {
	everyOrder(t, func(t *testing.T, o memory.Options) {
		c := newCrowd(t, &o)
		defer c.end()
		c.ask("r1", "w1", "r2", "w2", "r3")
		c.expect("r1")
		c.cancel("w1")
		if o.Order == memory.Unordered {
			c.expect() // w2 waits, and there is no order
			c.cancel("w2")
			c.expect("r2", "r3")
			return
		}
		c.expect("r2")
		c.cancel("w2")
		c.expect("r3")
	})
}

func TestClosedWriterHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, nil)
		defer c.end()
		d := c.server.NewDriver()
		c.drivers["d"] = d
		c.ask("r1", "w-d", "r-d", "r2")
		c.expect("r1")
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.expect("r2")
	})
}

func TestReadersOfADriverTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, &memory.Options{Order: memory.FIFOByClient})
		defer c.end()
		c.drivers["a"], c.drivers["b"] = c.server.NewDriver(), c.server.NewDriver()
		c.ask("x", "r1a", "w2a", "r3a", "r1b", "w2b") // wait as r1a r1b, w2a, w2b, r3a
		c.expect("x")
		c.release("x")
		c.expect("r1a", "r1b")
		c.release("r1a", "r1b")
		c.expect("w2a")
		c.release("w2a")
		c.expect("w2b")
		c.release("w2b")
		c.expect("r3a")
	})
}

// Each reader ends at its own time, and the end of the last reader lets in the
// waiting writer.
func TestReadersEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, nil)
		defer c.end()
		c.ask("r1")
		time.Sleep(3 * time.Second)
		c.ask("r2", "w")
		c.expect("r1", "r2")
		time.Sleep(3 * time.Second)
		if err := c.leases["r2"].Renew(t.Context(), 10*time.Second); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Second) // r1 has ended, because it is not renewed
		if err := c.leases["r1"].Renew(t.Context(), 10*time.Second); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("renewal of a reader after its end: %v, want ErrNotHeld", err)
		}
		time.Sleep(5*time.Second - time.Nanosecond)
		c.expect()
		time.Sleep(time.Nanosecond)
		c.expect("w")
	})
}

func TestStatusOfReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, nil)
		defer c.end()
		c.ask("r1", "r2", "w", "r3")
		c.expect("r1", "r2")
		last, _ := c.leases["r2"].Tokens()
		s, err := c.server.NewDriver().Inspect(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if !s.Held || s.Mode != driver.Read || s.Holders != 2 || s.Owner != "r1" || s.Token != last || strings.Join(s.Queue, " ") != "w r3" {
			t.Errorf("got %+v", s)
		}
		c.release("r1", "r2")
		c.expect("w")
		if s, err = c.server.NewDriver().Inspect(t.Context(), "x"); err != nil || s.Mode != driver.Write || s.Holders != 1 {
			t.Errorf("got %+v and error %v", s, err)
		}
	})
}

func TestRemovalOfReaders(t *testing.T) {
	everyOrder(t, func(t *testing.T, o memory.Options) {
		c := newCrowd(t, &o)
		defer c.end()
		losses := func(want ...int32) {
			t.Helper()
			for i, who := range []string{"r1", "r2", "r3"} {
				if got := c.attempt[who].losses.Load(); got != want[i] {
					t.Errorf("%s was notified of %d losses, want %d", who, got, want[i])
				}
			}
		}
		told := int32(0) // losses of holds that end without a notice
		if o.KeepsAlive {
			told = 1
		}
		c.ask("r1", "r2", "r3", "w")
		c.expect("r1", "r2", "r3")
		c.server.ExpireHold(c.attempt["r2"].Hold)
		losses(0, told, 0)
		c.expect()
		if err := c.server.NewDriver().ForceUnlock(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		losses(1, told, 1)
		clear(c.leases)
		c.expect("w")
		c.release("w")

		c.ask("r1", "r2", "r3", "w")
		c.expect("r1", "r2", "r3")
		c.server.Expire("x")
		losses(told, told, told)
		clear(c.leases)
		c.expect("w")
	})
}

// The token of a reader is above the tokens of earlier writers and below the
// tokens of later writers.
func TestTokensOfReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, nil)
		defer c.end()
		last := uint64(0)
		for range 3 {
			for _, who := range []string{"w", "x", "r"} {
				c.ask(who)
				c.expect(who)
				first, n := c.leases[who].Tokens()
				if first <= last || n != 1 {
					t.Errorf("%s: got %d tokens from %d, after token %d", who, n, first, last)
				}
				last = first
				c.release(who)
			}
		}
	})
}
