package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// hangGuard is not an expected duration.
const hangGuard = 30 * time.Second

// TestFromRedisToRedis moves one name through the phases between two servers,
// next to a program that only knows from.
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
				t.Errorf("an old program while the name is held in phase %v: got %v, want ErrLocked or ErrSealed", phase, err)
			}
			for _, other := range phases {
				_, err := try(open("migrate:?from="+from+"&to="+to+"&phase="+other.String()), "x")
				wantErr(t, other.String()+" while the name is held in phase "+phase.String(), err, driver.ErrLocked)
			}
			first, n := l.Tokens()
			if first <= last {
				t.Errorf("round %d, phase %v: got token %d after %d", i, phase, first, last)
			}
			last = first + uint64(n) - 1
			release(t, l)
		}
	}
	if left := a.Do("HKEYS", "x"); !reflect.DeepEqual(left, []any{"mode", "dsync:seal"}) {
		t.Errorf("the lock on the old server: got fields %v, want only the seal", left)
	}
}

// scripts returns the number of scripts that a server has run.
func scripts(t *testing.T, s *testenv.RedisServer) int {
	t.Helper()
	n := 0
	for _, m := range regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`).FindAllStringSubmatch(fmt.Sprint(s.Do("INFO", "commandstats")), -1) {
		calls, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		n += calls
	}
	return n
}

func TestRequests(t *testing.T) {
	a, b := testenv.Redis(t), testenv.Redis(t)
	for _, test := range []struct {
		phase    migrate.Phase
		what     string
		from, to int // for a lock and its release
	}{
		{migrate.PhaseDual, "any name", 2, 2},
		{migrate.PhaseNew, "name that has not moved", 2, 3},
		{migrate.PhaseNew, "name that has moved", 0, 2},
		{migrate.PhaseDual, "name that has moved", 1, 2},
	} {
		t.Run(test.phase.String()+" "+test.what, func(t *testing.T) {
			d, _, err := driver.Open(t.Context(), "migrate:?from="+url.QueryEscape("redisson://"+a.Addr)+"&to="+url.QueryEscape("redisson://"+b.Addr)+
				"&phase="+test.phase.String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			for i := range 3 { // the servers learn the scripts
				name := fmt.Sprint(test.phase, i)
				if test.what == "name that has moved" {
					name = "moved"
				}
				from, to := scripts(t, a), scripts(t, b)
				release(t, lock(t, d, name))
				from, to = scripts(t, a)-from, scripts(t, b)-to
				if i == 2 && (from != test.from || to != test.to) {
					t.Errorf("got %d requests to the old backend and %d to the new one, want %d and %d", from, to, test.from, test.to)
				}
			}
		})
	}
}

// TestServersThatKeepNoSealAreRefused includes a fair lock, whose queue is not
// notified of seals.
func TestServersThatKeepNoSealAreRefused(t *testing.T) {
	a, b := testenv.Redis(t), testenv.Redis(t)
	from, to := "redisson://"+a.Addr, "redisson://"+b.Addr
	for _, pair := range [][2]string{{from, to}, {from + "?evict=allow", to}, {from, to + "?evict=allow"}, {from + "?fair=true", to}} {
		for _, phase := range phases {
			d, _, err := driver.Open(t.Context(), "migrate:?from="+url.QueryEscape(pair[0])+"&to="+url.QueryEscape(pair[1])+"&phase="+phase.String())
			if pair != [2]string{from, to} {
				wantErr(t, fmt.Sprint(pair), err, migrate.ErrNeedsGate)
			} else if err != nil {
				t.Fatal(err)
			}
			if err == nil {
				_ = d.Close(t.Context())
			}
		}
	}
	for _, side := range []struct {
		which    string
		from, to string
	}{{"from", from + "?evict=allow", to}, {"to", from, to + "?evict=allow"}} { // in code, without a request to the backends
		d, err := migrate.New(drivertest.Open(t, side.from), drivertest.Open(t, side.to), &migrate.Options{Phase: migrate.PhaseNew})
		if err != nil {
			t.Fatal(err)
		}
		_, err = try(d, side.which)
		wantErr(t, side.which+" may evict", err, errors.ErrUnsupported)
		if errors.Is(err, driver.ErrUnknown) || a.Do("EXISTS", side.which) != int64(0) || b.Do("EXISTS", side.which) != int64(0) {
			t.Errorf("%s may evict: got %v and a lock, want neither a lock nor doubt", side.which, err)
		}
	}
}
