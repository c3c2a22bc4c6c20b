package zk_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestChangesThatCloseCrosses checks that a change made before Close began is a
// success if its answer comes, and otherwise unknown.
func TestChangesThatCloseCrosses(t *testing.T) {
	s := testenv.ZooKeeper(t)
	other := openURL(t, "zk://%s", s.Addr)
	for what, test := range map[string]struct {
		match string // in the request
		begin func(d *zk.Driver, name string) func(ctx context.Context) error
	}{
		"SetLatch": {"id-of-set", func(d *zk.Driver, name string) func(ctx context.Context) error {
			setLatch(t, other, name+" above", "set", 1) // so that the node above is there
			return func(ctx context.Context) error {
				_, err := d.SetLatch(ctx, name, "id-of-set", 3)
				return err
			}
		}},
		"CountDown": {"id-of-count", func(d *zk.Driver, name string) func(ctx context.Context) error {
			setLatch(t, other, name, "set", 3)
			return func(ctx context.Context) error { return d.CountDown(ctx, name, "id-of-count") }
		}},
		"DeleteLatch": {"id-of-delete", func(d *zk.Driver, name string) func(ctx context.Context) error {
			setLatch(t, other, name, "set", 3)
			return func(ctx context.Context) error { return d.DeleteLatch(ctx, name, "id-of-delete") }
		}},
		"SetLimit": {"%limit", func(d *zk.Driver, name string) func(ctx context.Context) error {
			if err := other.SetLimit(t.Context(), name, 3); err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context) error { return d.SetLimit(ctx, name, 4) }
		}},
		"ForceUnlock": {"/_c_", func(d *zk.Driver, name string) func(ctx context.Context) error {
			acquire(t, other, request(name))
			return func(ctx context.Context) error { return d.ForceUnlock(ctx, name) }
		}},
		"Release": {"/_c_", func(d *zk.Driver, name string) func(ctx context.Context) error {
			return acquire(t, d, request(name)).Release
		}},
		"Mark": {"dsync-mark", func(d *zk.Driver, name string) func(ctx context.Context) error {
			l := acquire(t, d, request(name))
			return func(ctx context.Context) error { return d.Mark(ctx, l, 1) }
		}},
		"Seal": {"dsync-seal", func(d *zk.Driver, name string) func(ctx context.Context) error {
			l := acquire(t, d, request(name))
			return func(ctx context.Context) error { return d.Seal(ctx, l) }
		}},
		"Loosen": {"dsync-seal", func(d *zk.Driver, name string) func(ctx context.Context) error {
			seal(t, other, acquire(t, other, request(name)))
			return func(ctx context.Context) error { return d.Loosen(ctx, name, "id", 0) }
		}},
	} {
		t.Run(what, func(t *testing.T) {
			for _, answered := range []bool{true, false} {
				link, addr := testenv.Wire(t, s.Addr)
				d, err := zk.New(guard(t), []string{addr}, &zk.Options{TTL: 2 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				name := what
				if answered {
					name += " answered"
				}
				call := test.begin(d, name)
				held := link.HoldReply(test.match)
				ended := make(chan error, 1)
				go func() { ended <- call(guard(t)) }() // ends by its guard
				<-held
				bound := hangGuard
				if !answered {
					bound = 100 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				closed := make(chan error, 1)
				go func() { closed <- d.Close(ctx) }() // ends by its guard
				tries := 0
				testenv.Eventually(t, func() bool {
					tries++
					_, err := d.Watch(fmt.Sprint("another", tries), func() {})
					return errors.Is(err, driver.ErrClosed)
				}, "Close has begun")
				if answered {
					link.Heal()
					wantErr(t, "answered", <-ended, nil)
					wantErr(t, "Close", <-closed, nil)
				} else {
					wantErr(t, "without an answer", <-ended, driver.ErrUnknown, driver.ErrClosed)
					<-closed
				}
				cancel()
			}
		})
	}
}
