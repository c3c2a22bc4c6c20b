package etcd_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/testenv"
)

// beginClose calls Close and returns when the driver accepts no calls.
func beginClose(tb testing.TB, d *etcd.Driver) (closed <-chan error) {
	tb.Helper()
	c := make(chan error, 1)
	go func() { c <- d.Close(guard(tb)) }()
	testenv.Eventually(tb, func() bool {
		_, err := d.Acquire(tb.Context(), noWait("none"))
		return errors.Is(err, driver.ErrClosed)
	}, "Close has begun")
	return c
}

// closeBeside holds a lock with its own lease and calls Close during another
// call whose answer is held back. It returns the errors from both calls and the
// keys that are left.
func closeBeside(t *testing.T, call func(d *etcd.Driver, l driver.Lease) error) (left []string, called, closed error) {
	t.Helper()
	s := testenv.Etcd(t)
	link, addr := testenv.Wire(t, s.Addr)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s", addr)
	l := acquire(t, d, fixed(request("a"), 20*time.Second))
	key := keys(t, c, "a/")[0]
	before := leaseOf(t, c, key)
	held := link.HoldReply(key)
	returned := make(chan error, 1)
	go func() { returned <- call(d, l) }()
	<-held
	closing := beginClose(t, d)
	testenv.Eventually(t, func() bool { return leaseOf(t, c, key) != before }, "the key has moved")
	link.Heal()
	called, closed = <-returned, <-closing
	return keys(t, c, "a/"), called, closed
}

// TestCloseBesideLeave calls Close during a Leave. Close must not end the hold.
func TestCloseBesideLeave(t *testing.T) {
	left, called, closed := closeBeside(t, func(d *etcd.Driver, l driver.Lease) error { return d.Leave(guard(t), l, 15*time.Second) })
	if called != nil || closed != nil {
		t.Errorf("Leave: %v; Close: %v", called, closed)
	}
	if len(left) != 1 {
		t.Errorf("keys after Close: got %q, want the key of the hold", left)
	}
}

// TestCloseBesideRenew calls Close during a renewal. Close must then revoke the
// lease to which the renewal moved the key.
func TestCloseBesideRenew(t *testing.T) {
	left, called, closed := closeBeside(t, func(d *etcd.Driver, l driver.Lease) error { return l.Renew(guard(t), time.Minute) })
	if called != nil || closed != nil {
		t.Errorf("Renew: %v; Close: %v", called, closed)
	}
	if len(left) > 0 {
		t.Errorf("keys after Close: got %q", left)
	}
}

// withhold dials connections that withhold answers to transactions that have
// changed something. The channel receives an element for each such answer.
func withhold() (dial grpc.DialOption, changed <-chan struct{}) {
	carried := make(chan struct{}, 1)
	dial = grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, answer any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		err := invoke(ctx, method, request, answer, c, o...)
		if txn, ok := answer.(*pb.TxnResponse); err == nil && ok && slices.ContainsFunc(txn.Responses, isChange) {
			carried <- struct{}{}
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		return err
	})
	return dial, carried
}

func isChange(r *pb.ResponseOp) bool { return r.GetResponseRange() == nil }

// TestCloseBesideChanges calls Close during changes that the server has carried
// out.
func TestCloseBesideChanges(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	other := openURL(t, "etcd://%s", s.Addr)
	for _, name := range []string{"down", "delete"} {
		setLatch(t, other, name, name, 3)
	}
	acquire(t, other, request("force"))
	seal(t, other, acquire(t, other, request("unseal")))
	loosen(t, other, "unseal", "unseal", 0)
	for what, change := range map[string]func(d *etcd.Driver) error{
		"SetLatch": func(d *etcd.Driver) error {
			_, err := d.SetLatch(guard(t), "set", "id", 3)
			return err
		},
		"CountDown":   func(d *etcd.Driver) error { return d.CountDown(guard(t), "down", "id") },
		"DeleteLatch": func(d *etcd.Driver) error { return d.DeleteLatch(guard(t), "delete", "id") },
		"SetLimit":    func(d *etcd.Driver) error { return d.SetLimit(guard(t), "limit", 3) },
		"ForceUnlock": func(d *etcd.Driver) error { return d.ForceUnlock(guard(t), "force") },
		"Unseal":      func(d *etcd.Driver) error { return d.Unseal(guard(t), "unseal", "unseal") },
	} {
		t.Run(what, func(t *testing.T) {
			dial, carried := withhold()
			d, err := etcd.New(newClient(t, clientv3.Config{Endpoints: []string{s.Addr}, DialOptions: []grpc.DialOption{dial}}), nil)
			if err != nil {
				t.Fatal(err)
			}
			changed := make(chan error, 1)
			go func() { changed <- change(d) }()
			<-carried
			if err := d.Close(guard(t)); err != nil {
				t.Errorf("Close: %v", err)
			}
			wantErr(t, what, <-changed, driver.ErrClosed, driver.ErrUnknown)
		})
	}
}
