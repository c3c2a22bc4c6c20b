package migrate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestUntilEndsWithItsTimeOrItsParent(t *testing.T) {
	for _, test := range []struct {
		what   string
		parent time.Duration // until the end of the parent
		cancel bool
		asks   bool // somebody waits before it ends
		after  time.Duration
		want   error
	}{
		{"in time", time.Hour, false, false, time.Minute - 1, nil},
		{"in time, and waited for", time.Hour, false, true, time.Minute - 1, nil},
		{"its time is over", time.Hour, false, false, time.Minute, context.DeadlineExceeded},
		{"its time is over, and it was waited for", time.Hour, false, true, time.Minute, context.DeadlineExceeded},
		{"the parent's time is over", time.Second, false, false, time.Second, context.DeadlineExceeded},
		{"the parent is canceled", time.Hour, true, false, 0, context.Canceled},
		{"the parent is canceled while it is waited for", time.Hour, true, true, 0, context.Canceled},
	} {
		synctest.Test(t, func(t *testing.T) {
			parent, cancel := context.WithTimeout(t.Context(), test.parent)
			defer cancel()
			u := &until{Context: parent, at: time.Now().Add(time.Minute)}
			defer u.stopTimer()
			if at, ok := u.Deadline(); !ok || time.Until(at) != min(time.Minute, test.parent) {
				t.Errorf("%s: got deadline %v, want the earlier one", test.what, at)
			}
			if test.asks {
				u.Done()
			}
			if test.cancel {
				cancel()
			}
			<-time.After(test.after)
			synctest.Wait()
			if got := u.Err(); got != test.want {
				t.Errorf("%s: Err: got %v, want %v", test.what, got, test.want)
			}
			select {
			case <-u.Done():
				if test.want == nil {
					t.Errorf("%s: it has ended", test.what)
				}
			default:
				if test.want != nil {
					t.Errorf("%s: it has not ended", test.what)
				}
			}
		})
	}
}
