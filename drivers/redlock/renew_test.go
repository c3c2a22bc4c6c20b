package redlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// TestLateRenewalsAreNotSent has callers give up while their renewals wait for
// busy nodes.
func TestLateRenewalsAreNotSent(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s", nodes.url()+settled)
	l := acquire(t, d, request("x"))
	const given = 20
	got := nodes.counted(func() {
		for _, s := range nodes {
			s.Freeze()
		}
		for range given {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			if err := l.Renew(ctx, testTTL); !errors.Is(err, driver.ErrUnknown) {
				t.Errorf("a renewal that no node answers: got %v, want driver.ErrUnknown", err)
			}
			cancel()
		}
		for _, s := range nodes {
			s.Thaw()
		}
		if err := l.Renew(t.Context(), testTTL); err != nil {
			t.Error(err)
		}
	}, "evalsha")["evalsha"]
	// Besides the last renewal, one may have been on its way to each node.
	if want := int64(2 * len(nodes)); got > want {
		t.Errorf("%d renewals, one of them awaited: got %d requests to the nodes, want at most %d", given+1, got, want)
	}
	release(t, l)
}

func TestBatchesAreBoundedByWhatTheyAreAbout(t *testing.T) {
	n := &node{}
	full := &renewal{leases: make([]*lease, maxRenewals)}
	n.queue = []task{full, full, full, &vote{}, &vote{}, &renewal{leases: make([]*lease, 2*maxWeight)}, &vote{}}
	for i, want := range []int{maxWeight / maxRenewals, 3, 1, 1, 0} {
		if batch := n.dequeue(nil); len(batch) != want {
			t.Errorf("batch %d: got %d tasks, want %d", i, len(batch), want)
		}
	}
}
