package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestManySleepsAreNeverUnderestimated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		const n, each = 5000, 2 * time.Millisecond
		for i := range n {
			time.Sleep(time.Second)
			c.Sleep(each, false)
			c.Now()
			for _, ago := range []int{1, 3, 10, 31, 100, 1000} {
				if ago > i {
					continue
				}
				exact := each * time.Duration(ago)
				got := c.Missed(c.Now() - time.Duration(ago)*time.Second + time.Second/2)
				if got < exact || got > 2*exact {
					t.Fatalf("after %d sleeps: missed %v in the last %d s, want %v, or a little more", i+1, got, ago, exact)
				}
			}
		}
	})
}
