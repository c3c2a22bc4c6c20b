package migrate_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCostIsThatOfTheBackends counts requests for a lock and its release: in phase dual no more than both backends take and one more, in
// phase new no more than the new backend takes alone.
func TestCostIsThatOfTheBackends(t *testing.T) {
	a, b := testenv.Redis(t), testenv.Redis(t)
	from, to := "redisson://"+a.Addr, "redisson://"+b.Addr
	cost := func(raw string) (onFrom, onTo int) {
		d := drivertest.Open(t, raw)
		lockOnce := func() { release(t, lock(t, d, "x")) }
		lockOnce() // the servers learn the scripts, and the name moves
		lockOnce()
		onFrom, onTo = scripts(t, a), scripts(t, b)
		for range 20 {
			lockOnce()
		}
		onFrom, onTo = scripts(t, a)-onFrom, scripts(t, b)-onTo
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		return onFrom, onTo
	}
	bareFrom, _ := cost(from)
	_, bareTo := cost(to)
	pair := "migrate:?from=" + url.QueryEscape(from) + "&to=" + url.QueryEscape(to)
	for _, more := range []string{"&gate=true&fenced=false", ""} {
		onFrom, onTo := cost(pair + more + "&phase=dual")
		if got, most := onFrom+onTo, bareFrom+bareTo+20; got > most {
			t.Errorf("phase dual%s: got %d requests for 20 locks, want %d at most", more, got, most)
		}
		onFrom, onTo = cost(pair + more + "&phase=new")
		if onFrom != 0 || onTo > bareTo*105/100 {
			t.Errorf("phase new%s: got %d and %d requests for 20 locks, want 0 and %d", more, onFrom, onTo, bareTo)
		}
	}
}

// BenchmarkNew compares a name that has moved with the new backend alone.
func BenchmarkNew(b *testing.B) {
	s, old := testenv.Redis(b), testenv.Redis(b)
	bare := "redisson://" + s.Addr
	for name, raw := range map[string]string{
		"bare":  bare,
		"moved": fmt.Sprintf("migrate:?from=%s&to=%s&phase=new", url.QueryEscape("redisson://"+old.Addr), url.QueryEscape(bare)),
	} {
		b.Run(name, func(b *testing.B) {
			d, _, err := driver.Open(b.Context(), raw)
			if err != nil {
				b.Fatal(err)
			}
			drivertest.CloseLater(b, d)
			for b.Loop() {
				l, err := d.Acquire(b.Context(), &newAttempt("bench").Request)
				if err == nil {
					err = l.Release(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
