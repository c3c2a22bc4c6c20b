package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

const advisoryLocks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"

// testCanceledWaitLeavesNothing lets the end of a wait race with the grant,
// many times.
func testCanceledWaitLeavesNothing(t *testing.T, pg *testenv.PostgresServer) {
	holders, waiters := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)
	const callers, rounds = 8, 1000
	var mu sync.Mutex
	granted, canceled, unknown := 0, 0, 0
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			name := fmt.Sprint("cancel", i)
			for range rounds {
				l, err := holders.Acquire(t.Context(), request(name, longTTL))
				if err != nil {
					t.Errorf("Acquire of the holder: %v", err)
					return
				}
				ctx, cancel := context.WithCancel(t.Context())
				result := make(chan error, 1)
				r := request(name, longTTL)
				go func() {
					got, err := waiters.Acquire(ctx, r)
					if err == nil {
						err = got.Release(t.Context())
					}
					result <- err
				}()
				testenv.Eventually(t, func() bool { return r.Events.(*events).waiting.Load() > 0 || len(result) > 0 }, "the client waits")
				var both sync.WaitGroup
				both.Go(func() {
					pause(rand.N(2 * time.Millisecond))
					cancel()
				})
				both.Go(func() {
					pause(rand.N(400 * time.Microsecond))
					if err := l.Release(t.Context()); err != nil {
						t.Errorf("Release of the holder: %v", err)
					}
				})
				both.Wait()
				err = <-result
				mu.Lock()
				switch {
				case err == nil:
					granted++
				case errors.Is(err, context.Canceled):
					canceled++
					if errors.Is(err, driver.ErrUnknown) {
						unknown++
					}
				default:
					t.Errorf("Acquire: got %v, want nil or the error of the context", err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d granted, %d canceled, %d of these not cleaned up at return", granted, canceled, unknown)
	if granted == 0 || canceled == 0 {
		t.Errorf("there was no race: %d granted, %d canceled", granted, canceled)
	}
	conn := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks) == 0 }, "no lock is left")
}

// pause spins, for times that are too short for a timer.
func pause(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}

// testCanceledTryLeavesNothing lets the end of the context race with the
// answer.
func testCanceledTryLeavesNothing(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, nil)
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			pause(rand.N(300 * time.Microsecond))
			cancel()
		}()
		l, err := d.Acquire(ctx, try("a"))
		if err == nil {
			mustRelease(t, l)
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
		<-done
	}
	mustRelease(t, mustAcquire(t, d, request("a", longTTL)))
	conn := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks) == 0 }, "no lock is left")
}

// testCloseInEveryState closes a driver that holds, waits, requests and
// releases, and checks that nothing is left.
func testCloseInEveryState(t *testing.T, pg *testenv.PostgresServer) {
	holder := newDriver(t, pg.Addr, nil)
	taken := mustAcquire(t, holder, request("taken", longTTL))
	for range 5 {
		d := newDriver(t, pg.Addr, nil)
		held := mustAcquire(t, d, request("held", longTTL))
		fixed := request("fixed", longTTL)
		fixed.Fixed = true
		mustAcquire(t, d, fixed)
		var wg sync.WaitGroup
		begun := make(chan struct{}, 3)
		for i, name := range []string{"taken", "held", "busy"} {
			wg.Go(func() {
				begun <- struct{}{}
				if i == 2 {
					for {
						l, err := d.Acquire(t.Context(), request(name, longTTL))
						if err == nil {
							err = l.Release(t.Context())
						}
						if err != nil {
							if !errors.Is(err, driver.ErrClosed) && !errors.Is(err, driver.ErrNotHeld) {
								t.Errorf("lock and unlock during Close: %v", err)
							}
							return
						}
					}
				}
				if l, err := d.Acquire(t.Context(), request(name, longTTL)); !errors.Is(err, driver.ErrClosed) {
					t.Errorf("Acquire of %s during Close: got %v, %v, want ErrClosed", name, l, err)
				}
			})
		}
		for range 3 {
			<-begun
		}
		pause(rand.N(2 * time.Millisecond))
		closeDriver(t, d)
		wg.Wait()
		if err := held.Release(t.Context()); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Release after Close: got %v, want ErrNotHeld", err)
		}
		if _, err := d.Acquire(t.Context(), try("held")); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("Acquire after Close: got %v, want ErrClosed", err)
		}
		if n := value[int](t, connect(t, pg), advisoryLocks); n != 1 {
			t.Errorf("advisory locks after Close: got %d, want only the lock of the other client", n)
		}
	}
	mustRelease(t, taken)
}

// testCapOfLocks and testCapOfWaiters check that limits are errors, and that
// the driver continues to work.
func testCapOfLocks(t *testing.T, pg *testenv.PostgresServer) {
	d := newDriver(t, pg.Addr, &pglock.Options{MaxLocks: 2})
	a := mustAcquire(t, d, try("a"))
	mustAcquire(t, d, try("b"))
	if _, err := d.Acquire(t.Context(), request("c", longTTL)); !errors.Is(err, pglock.ErrTooManyLocks) {
		t.Errorf("Acquire over the limit: got %v, want ErrTooManyLocks", err)
	}
	mustRelease(t, a)
	mustAcquire(t, d, try("c"))
}

func testCapOfWaiters(t *testing.T, pg *testenv.PostgresServer) {
	other, d := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, &pglock.Options{MaxWaiters: 1})
	a, b := mustAcquire(t, other, try("a")), mustAcquire(t, other, try("b"))
	r := request("a", longTTL)
	granted := make(chan driver.Lease)
	go func() { granted <- mustAcquire(t, d, r) }()
	conn := connect(t, pg)
	waiting := advisoryLocks + " AND NOT granted"
	testenv.Eventually(t, func() bool { return value[int](t, conn, waiting) == 1 }, "one caller waits")
	_, err := d.Acquire(t.Context(), request("b", longTTL))
	if !errors.Is(err, pglock.ErrTooManyWaiters) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Acquire over the limit: got %v, want ErrTooManyWaiters", err)
	}
	mustRelease(t, a)
	mustRelease(t, <-granted)
	go func() { granted <- mustAcquire(t, d, request("b", longTTL)) }()
	testenv.Eventually(t, func() bool { return value[int](t, conn, waiting) == 1 }, "one caller waits")
	mustRelease(t, b)
	mustRelease(t, <-granted)
}

// testServerKnowsWhoWaits queries a wait, and the session after the wait.
func testServerKnowsWhoWaits(t *testing.T, pg *testenv.PostgresServer) {
	holder, d := newDriver(t, pg.Addr, nil), newDriver(t, pg.Addr, nil)
	want := func(want bool, when string) {
		t.Helper()
		if waits, err := d.Waits(t.Context()); err != nil || len(waits) != 1 || waits[0] != want {
			t.Errorf("%s: the session waits: %v, %v; want %v", when, waits, err, want)
		}
	}
	l := mustAcquire(t, holder, try("a"))
	granted := goAcquire(t, d, request("a", longTTL))
	conn := connect(t, pg)
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
	want(true, "during a wait")
	mustRelease(t, l)
	l = <-granted
	want(false, "after the grant")
	mustRelease(t, l)
	want(false, "after the release")
}

// testManyWaitersFewConnections lets 1,000 callers in 4 processes wait for one
// name, and measures the effect on other clients.
func testManyWaitersFewConnections(t *testing.T, pg *testenv.PostgresServer) {
	const processes, callers = 4, 250
	conn := connect(t, pg)
	d := newDriver(t, pg.Addr, nil)
	first := mustAcquire(t, d, request("hot", longTTL))
	var crowds []*testenv.Process
	for range processes {
		crowds = append(crowds, testenv.Spawn(t, "crowd", "LOCK_URL="+pg.URL("pglock")+"?sslmode=disable", fmt.Sprint("CALLERS=", callers)))
	}
	for _, p := range crowds {
		if got := p.Line(); got != "all callers wait" {
			t.Fatalf("a process printed %q", got)
		}
	}
	testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == processes }, "one caller of each process waits on the server")
	if n := value[int](t, conn, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dsync#%'"); n > 40 {
		t.Errorf("connections: got %d, want at most 40", n)
	} else {
		t.Logf("%d connections", n)
	}
	waiting := worstOfOthers(t, conn, 200)
	mustRelease(t, first)
	draining := worstOfOthers(t, conn, 200)
	t.Logf("another advisory lock took at worst %v while they waited, and %v while they took turns", waiting, draining)
	for _, p := range crowds {
		if err := p.Wait(); err != nil {
			t.Errorf("a process ended with %v", err)
		}
	}
}

// worstOfOthers returns the longest time to lock and unlock another key by SQL.
func worstOfOthers(t *testing.T, conn *pgx.Conn, times int) (worst time.Duration) {
	for range times {
		start := time.Now()
		if !value[bool](t, conn, "SELECT pg_try_advisory_lock(hashtextextended('another', 0))") ||
			!value[bool](t, conn, "SELECT pg_advisory_unlock(hashtextextended('another', 0))") {
			t.Error("another lock cannot be taken")
		}
		worst = max(worst, time.Since(start))
	}
	return worst
}

// crowdRole runs many callers that acquire "hot" in turn.
func crowdRole() {
	d, _, err := driver.Open(context.Background(), os.Getenv("LOCK_URL"))
	if err != nil {
		panic(err)
	}
	callers, _ := strconv.Atoi(os.Getenv("CALLERS"))
	var wg, asking sync.WaitGroup
	for range callers {
		r := request("hot", longTTL)
		asking.Add(1)
		r.Events = &crowdEvents{r.Events, &asking}
		wg.Go(func() {
			l, err := d.Acquire(context.Background(), r)
			if err == nil {
				err = l.Release(context.Background())
			}
			if err != nil {
				panic(err)
			}
		})
	}
	asking.Wait()
	fmt.Println("all callers wait")
	wg.Wait()
}

// crowdEvents reports that a caller waits.
type crowdEvents struct {
	driver.Events
	asking *sync.WaitGroup
}

// Waiting implements driver.Events.
func (e *crowdEvents) Waiting() {
	e.Events.Waiting()
	e.asking.Done()
}
