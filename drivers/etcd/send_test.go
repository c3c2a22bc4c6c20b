package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

type contextKey struct{}

// TestRequestsEnd checks when the contexts of requests end, for each way to
// make one.
func TestRequestsEnd(t *testing.T) {
	const limit = 8 * time.Second
	type makes = func(b *bound, ctx context.Context) (context.Context, context.CancelFunc)
	for _, test := range []struct {
		name     string
		make     makes
		never    bool          // the caller's context cannot end
		deadline time.Duration // of the caller's context; 0: none
		cancels  time.Duration // when the caller's context is canceled; 0: never
		closes   time.Duration // the same for the driver
		want     time.Duration
	}{
		{name: "under a context that never ends", make: (*bound).under, never: true, want: limit},
		{name: "under a context that goes on", make: (*bound).under, want: limit},
		{name: "under a context with a deadline behind the bound", make: (*bound).under, deadline: 2 * limit, want: limit},
		{name: "under a context with a deadline before the bound", make: (*bound).under, deadline: 2 * time.Second, want: 2 * time.Second},
		{name: "under a context that is canceled", make: (*bound).under, cancels: time.Second, want: time.Second},
		{name: "under a context, and the driver is closed", make: (*bound).under, closes: time.Second, want: time.Second},
		{name: "ending under a context with a deadline behind the bound", make: (*bound).ending, deadline: 2 * limit, want: limit},
		{name: "ending under a context with a deadline before the bound", make: (*bound).ending, deadline: 2 * time.Second, want: 2 * time.Second},
		{name: "ending under a context that is canceled", make: (*bound).ending, cancels: time.Second, want: limit},
		{name: "ending under a context, and the driver is closed", make: (*bound).ending, closes: time.Second, want: time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				life, closeDriver := context.WithCancel(t.Context())
				defer closeDriver()
				caller, cancel := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "its own"))
				defer cancel()
				if test.deadline > 0 {
					caller, cancel = context.WithTimeout(caller, test.deadline)
					defer cancel()
				}
				if test.never {
					caller = context.WithoutCancel(caller)
				}
				b := &bound{life: life, time: limit}
				ctx, done := test.make(b, caller)
				defer done()
				start := time.Now()
				if test.cancels > 0 {
					time.AfterFunc(test.cancels, cancel)
				}
				if test.closes > 0 {
					time.AfterFunc(test.closes, closeDriver)
				}
				child, end := context.WithCancel(ctx) // like a context made by the client library
				defer end()
				if deadline, ok := child.Deadline(); ok {
					t.Errorf("Deadline: got %v, want none", deadline)
				}
				if got := child.Value(contextKey{}); got != "its own" {
					t.Errorf("Value: got %v", got)
				}
				<-child.Done()
				if got := time.Since(start); got != test.want {
					t.Errorf("ended after %v, want %v", got, test.want)
				}
				if err := ctx.Err(); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Err: got %v", err)
				}
			})
		})
	}
	b := &bound{life: t.Context(), time: limit}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	ctx, done := b.ending(over)
	defer done()
	if ctx.Err() == nil {
		t.Error("a request that begins under an ended context continues")
	}
}

// TestRequestsShareAnEnd has requests begin one after another. Each has at
// least seven eighths of the bound, and at most the whole bound.
func TestRequestsShareAnEnd(t *testing.T) {
	const limit = 8 * time.Second
	synctest.Test(t, func(t *testing.T) {
		b := &bound{life: t.Context(), time: limit}
		ends := make(map[time.Time]bool)
		for range 20 {
			start := time.Now()
			ctx := b.with(t.Context())
			go func() { // ends when ctx ends
				<-ctx.Done()
				if got := time.Since(start); got < limit*7/8 || got > limit {
					t.Errorf("ended after %v, want %v to %v", got, limit*7/8, limit)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				ends[time.Now()] = true
			}()
			time.Sleep(limit / 32)
		}
		time.Sleep(limit)
		synctest.Wait()
		if got := len(ends); got != 4 {
			t.Errorf("%d ends of 20 requests, want 4", got)
		}
	})
}

// TestAnswersOfAnotherShape checks that an answer that lacks a requested part,
// or has something else in its place, is not accepted.
func TestAnswersOfAnotherShape(t *testing.T) {
	get := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}}
	put := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
	deletion := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{}}}
	nested := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{}}}
	all := []*pb.ResponseOp{get, put, deletion, nested}
	then := []clientv3.Op{clientv3.OpGet("a"), clientv3.OpPut("a", ""), clientv3.OpDelete("a"), clientv3.OpTxn(nil, nil, nil)}
	answered := func(succeeded bool, responses ...*pb.ResponseOp) bool {
		return answers(&clientv3.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: succeeded, Responses: responses}, then, then[:1])
	}
	if !answered(true, all...) || !answered(false, get) {
		t.Error("an answer of the right shape is rejected")
	}
	if answers(&clientv3.TxnResponse{Succeeded: true, Responses: all}, then, nil) {
		t.Error("an answer without a header is accepted")
	}
	if answered(true) || answered(false) || answered(true, get) || answered(false, all...) {
		t.Error("too few or too many responses are accepted")
	}
	for i := range all {
		for _, other := range []*pb.ResponseOp{all[(i+1)%len(all)], {}} {
			wrong := append(append([]*pb.ResponseOp{}, all[:i]...), other)
			if answered(true, append(wrong, all[i+1:]...)...) {
				t.Errorf("%v in place of response %d is accepted", other, i)
			}
		}
	}
}
