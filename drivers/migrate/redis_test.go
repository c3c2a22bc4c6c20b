package migrate_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/testenv"
)

// hangGuard is no expectation of how long something takes.
const hangGuard = 30 * time.Second

// TestFromRedisToRedis takes one name through the phases between two servers, beside a program that knows from alone.
func TestFromRedisToRedis(t *testing.T) {
	a, b := testenv.Redis(t), testenv.Redis(t)
	open := func(url string) driver.Driver {
		d, _, err := driver.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
			defer cancel()
			if err := d.Close(ctx); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		return d
	}
	from, to := url.QueryEscape("redisson://"+a.Addr), url.QueryEscape("redisson://"+b.Addr)
	old := open("redisson://" + a.Addr)
	var last uint64
	for i := range 2 {
		for _, phase := range phases {
			d := open("migrate:?require=fenced&from=" + from + "&to=" + to + "&phase=" + phase.String())
			l := lock(t, d, "x")
			if _, err := try(old, "x"); !errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrSealed) {
				t.Errorf("an old program beside phase %v: got %v, want ErrLocked or ErrSealed", phase, err)
			}
			for _, other := range phases {
				_, err := try(open("migrate:?from="+from+"&to="+to+"&phase="+other.String()), "x")
				wantErr(t, other.String()+" beside "+phase.String(), err, driver.ErrLocked)
			}
			first, n := l.Tokens()
			if first <= last {
				t.Errorf("round %d, phase %v: got token %d after %d", i, phase, first, last)
			}
			last = first + uint64(n) - 1
			release(t, l)
		}
	}
	if left := a.Do("HKEYS", "x"); len(left.([]any)) != 1 {
		t.Errorf("the lock on the old server: got fields %v, want the seal alone", left)
	}
}
