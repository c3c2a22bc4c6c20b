package recipes

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/guard"
	"github.com/go-dsync/dsync/internal/testenv"
)

func open(t *testing.T, url string) *dsync.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := dsync.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestCronOnServers is TestCronRunsOncePerPeriod on real servers: three processes, clocks 150 ms apart, and a deploy in the middle of each
// period of the first process.
func TestCronOnServers(t *testing.T) {
	testenv.Long(t)
	for name, url := range map[string]func(*testing.T) string{
		"redis":    func(t *testing.T) string { return "redisson://" + testenv.Redis(t).Addr },
		"etcd":     func(t *testing.T) string { return "etcd://" + testenv.Etcd(t).Addr },
		"postgres": func(t *testing.T) string { return testenv.Postgres(t).URL("pglock") + "?sslmode=disable" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cron(t, url(t), 2*time.Second, 20)
		})
	}
}

func cron(t *testing.T, url string, period time.Duration, count int) {
	var mu sync.Mutex
	runs, asked := map[int64]int{}, map[int64]int{}
	start := time.Now().Truncate(period).Add(2 * period)
	var wg sync.WaitGroup
	for i := range 3 {
		client := open(t, url)
		wg.Go(func() {
			for n := range count {
				at := start.Add(time.Duration(n) * period)
				time.Sleep(time.Until(at.Add(time.Duration(i) * 150 * time.Millisecond)))
				err := OncePerPeriod(t.Context(), client, "report", period, at, func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					runs[at.Unix()]++
					return nil
				})
				if err != nil {
					t.Logf("process %d: %v", i, err) // a busy machine may keep it from asking in time
				} else if time.Since(at) < period {
					mu.Lock()
					asked[at.Unix()]++
					mu.Unlock()
				}
				if i == 0 {
					time.Sleep(period / 2)
					if err := client.Close(t.Context()); err != nil { // as at SIGTERM
						t.Error(err)
					}
					client = open(t, url)
				}
			}
		})
	}
	wg.Wait()
	if len(asked) < count/2 {
		t.Errorf("somebody asked in time in %d periods of %d", len(asked), count)
	}
	for n := range count {
		at := start.Add(time.Duration(n) * period)
		if got := runs[at.Unix()]; got > 1 || got == 0 && asked[at.Unix()] > 0 {
			t.Errorf("%d runs in period %d, want 1", got, n)
		}
	}
}

func TestSetBalanceRefusesLateWriters(t *testing.T) {
	pg := testenv.Postgres(t)
	client := open(t, pg.URL("pglock")+"?sslmode=disable")
	db, err := sql.Open("pgx", pg.URL("postgres")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		"create table dsync_guard (name text primary key, token bigint not null)",
		"create table accounts (id text primary key, balance bigint not null)",
		"insert into accounts values ('a', 0)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	set := func(balance int64) (token uint64) {
		t.Helper()
		err := dsync.Do(t.Context(), client, "accounts/a", func(ctx context.Context) error {
			token = dsync.LeaseFrom(ctx).Token()
			return errors.Join(SetBalance(ctx, db, "a", balance, token), SetBalance(ctx, db, "a", balance+1, token))
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	first, second := set(10), set(20)
	if err := SetBalance(t.Context(), db, "a", 11, first); !errors.Is(err, guard.ErrStale) {
		t.Errorf("a write with token %d after one with %d: %v, want %v", first, second, err, guard.ErrStale)
	}
	var balance int64
	if err := db.QueryRowContext(t.Context(), "select balance from accounts").Scan(&balance); err != nil || balance != 21 {
		t.Errorf("the balance is %d, %v; want 21", balance, err)
	}
}
