package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// observed records the states that an observer has seen.
type observed struct {
	t      *testing.T
	mu     sync.Mutex
	states []dsync.Status
	err    error
	done   chan struct{}
}

func observe(t *testing.T, seq iter.Seq2[dsync.Status, error]) *observed {
	o := &observed{t: t, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for s, err := range seq {
			o.mu.Lock()
			if err != nil {
				o.err = err
			} else {
				o.states = append(o.states, s)
			}
			o.mu.Unlock()
		}
	}()
	synctest.Wait()
	return o
}

// sees checks the states that were seen since the last call, by their notes; ""
// is a free name.
func (o *observed) sees(what string, want ...string) {
	o.t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	var got []string
	for _, s := range o.states {
		if s.Held == (s.Note == "") {
			o.t.Errorf("%s: a strange state %+v", what, s)
		}
		got = append(got, s.Note)
	}
	o.states = nil
	if !slices.Equal(got, want) {
		o.t.Errorf("%s: saw %q, want %q", what, got, want)
	}
}

// asked hides from package dsync that the driver reports changes.
type asked struct {
	driver.Driver
	driver.Inspector
}

func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		a := newClient(t, s.NewDriver(), &dsync.Options{Note: "a"})
		b := newClient(t, s.NewDriver(), &dsync.Options{Note: "b"})
		d := s.NewDriver()
		c := newClient(t, asked{d, d}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		o := observe(t, c.Observe(ctx, "x"))
		o.sees("at first", "")
		third := c.TTL() / 3
		lease := mustLock(t, a, "x")
		time.Sleep(third)
		o.sees("a grant", "a")
		time.Sleep(time.Hour)
		o.sees("an hour of renewals")
		lease.Unlock(t.Context())
		time.Sleep(third)
		o.sees("a release", "")
		mustLock(t, b, "x").Unlock(t.Context())
		lease = mustLock(t, a, "x")
		time.Sleep(third)
		o.sees("two grants in quick succession", "a")

		d.Cut()
		lease.Unlock(t.Context())
		mustLock(t, b, "x", dsync.ExpireAfter(2*time.Minute))
		time.Sleep(time.Minute)
		o.sees("an outage")
		d.Heal()
		time.Sleep(time.Second)
		o.sees("the end of the outage", "b")
		time.Sleep(time.Minute - time.Second + 10*time.Millisecond)
		o.sees("the end of a lease that is not renewed", "")
		cancel()
		<-o.done
		if o.err != nil {
			t.Errorf("at the end of ctx: error %v, want none", o.err)
		}
	})
}

// TestObserveIsTold uses a driver that reports changes, so there is no delay.
func TestObserveIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(nil)
		a := newClient(t, s.NewDriver(), &dsync.Options{Note: "a"})
		b := newClient(t, s.NewDriver(), &dsync.Options{Note: "b"})
		d := s.NewDriver()
		ctx, cancel := context.WithCancel(t.Context())
		o := observe(t, newClient(t, d, nil).Observe(ctx, "x"))
		o.sees("at first", "")
		lease := mustLock(t, a, "x")
		o.sees("a grant", "a")
		lease.Unlock(t.Context())
		o.sees("a release", "")
		mustLock(t, a, "x")
		o.sees("another grant", "a")
		if err := b.ForceUnlock(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		o.sees("a removal", "")

		d.Cut()
		mustLock(t, b, "x", dsync.ExpireAfter(time.Minute))
		time.Sleep(30 * time.Second)
		o.sees("an outage")
		d.Heal()
		o.sees("the end of the outage", "b")
		time.Sleep(30 * time.Second)
		o.sees("the end of a lease that is not renewed", "")
		cancel()
		<-o.done
		mustLock(t, a, "x")
		o.sees("after the end")
	})
}

func TestObserveEndsWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		o := observe(t, c.Observe(t.Context(), "x"))
		o.sees("at first", "")
		c.Close(t.Context())
		<-o.done
		for what, test := range map[string]struct {
			client *dsync.Client
			name   string
			want   error
		}{
			"a closed client":           {c, "x", dsync.ErrClosed},
			"a backend without Inspect": {newStub(t, &stub{}), "x", errors.ErrUnsupported},
		} {
			o := observe(t, test.client.Observe(t.Context(), test.name))
			<-o.done
			if !errors.Is(o.err, test.want) || len(o.states) != 0 {
				t.Errorf("%s: error %v after %d states, want %v", what, o.err, len(o.states), test.want)
			}
		}
		if !errors.Is(o.err, dsync.ErrClosed) {
			t.Errorf("Close: error %v, want ErrClosed", o.err)
		}
		for _, err := range newClient(t, memory.New(nil), nil).Observe(t.Context(), "") {
			if err == nil {
				t.Error("an empty name is observed")
			}
		}
	})
}

// behind is a driver whose answers come from servers in different states.
type behind struct {
	stub
	tokens []uint64
}

func (d *behind) Inspect(context.Context, string) (driver.Status, error) {
	n := d.tokens[0]
	if len(d.tokens) > 1 {
		d.tokens = d.tokens[1:]
	}
	return driver.Status{Held: true, Token: n, Note: fmt.Sprint(n)}, nil
}

func TestObserveNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for fencing, want := range map[driver.Fencing][]string{
			driver.Durable:  {"5", "7", "8"},
			driver.Volatile: {"5", "4", "7", "6", "8"}, // the backend may have lost data
		} {
			d := &behind{stub: stub{info: driver.Info{Fencing: fencing}}, tokens: []uint64{5, 4, 5, 7, 6, 7, 8}}
			if fencing == driver.Volatile {
				d.tokens = []uint64{5, 4, 7, 6, 8}
			}
			c := newClient(t, d, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 10*c.TTL())
			defer cancel()
			o := observe(t, c.Observe(ctx, "x"))
			<-o.done
			o.sees(fencing.String(), want...)
		}
	})
}
