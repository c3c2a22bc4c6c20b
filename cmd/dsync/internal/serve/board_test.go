package serve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/drivertest"
)

// spy is a backend that counts its requests and may have additional names.
type spy struct {
	*memory.Driver
	names        []string
	late         time.Duration // returned by each list
	lists, asked atomic.Int64
}

func (s *spy) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	s.lists.Add(1)
	if s.late > 0 {
		time.Sleep(s.late)
	}
	if s.names == nil {
		return s.Driver.List(ctx, prefix)
	}
	return func(yield func(string, error) bool) {
		for _, name := range s.names {
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (s *spy) Inspect(ctx context.Context, name string) (driver.Status, error) {
	s.asked.Add(1)
	if s.names == nil {
		return s.Driver.Inspect(ctx, name)
	}
	return driver.Status{Held: true, Holders: 1, Hold: "holder:1", Note: name}, ctx.Err()
}

// manyNames returns names in alphabetical order.
func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("lock/%06d", i))
	}
	return names
}

// boardOf returns a board on a driver. It runs until stop is called or the test
// ends.
func boardOf(t *testing.T, d driver.Driver, every time.Duration) (b *board, stop func() error) {
	t.Helper()
	client, err := dsync.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	u, err := driver.ParseURL("memory://board")
	if err != nil {
		t.Fatal(err)
	}
	b = newBoard(&cli.Backend{Client: client, Driver: d, URL: u}, "", every)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.run(ctx) }() // ends when ctx ends
	stop = sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-ended, client.Close(context.WithoutCancel(t.Context())))
	})
	t.Cleanup(func() { _ = stop() })
	return b, stop
}

// TestServeAsksForAllPagesTogether counts the requests to a backend.
func TestServeAsksForAllPagesTogether(t *testing.T) {
	t.Parallel()
	const every, window, many = 2 * time.Second, time.Minute, 20
	for _, test := range []struct {
		name  string
		late  time.Duration
		pages int
		views func(i int) view
		lists int64 // maximum in the window
		asked int64
	}{
		{name: "no page", lists: 0, asked: 0},
		{name: "one page", pages: 1, lists: 30, asked: 30 * rowsOfPage},
		{name: "one view", pages: 1000, lists: 30, asked: 30 * rowsOfPage},
		{name: "a slow list", late: 10 * time.Second, pages: 1, lists: 3, asked: 3 * rowsOfPage},
		{name: "many views", pages: many, views: func(i int) view { return view{from: fmt.Sprintf("lock/%06d", 50*i)} }, lists: 7, asked: 7 * many * rowsOfPage},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &spy{Driver: memory.New(nil), names: manyNames(10_000), late: test.late}
				b, stop := boardOf(t, d, every)
				for i := range test.pages {
					v := view{}
					if test.views != nil {
						v = test.views(i)
					}
					defer b.join(v)()
				}
				time.Sleep(time.Minute) // the first looks
				lists, asked := d.lists.Load(), d.asked.Load()
				time.Sleep(window)
				lists, asked = d.lists.Load()-lists, d.asked.Load()-asked
				if lists > test.lists+1 || asked > test.asked+many*rowsOfPage || test.pages > 0 && (lists < test.lists/2 || asked < test.asked/2) {
					t.Errorf("got %d lists and %d queries, want about %d and %d", lists, asked, test.lists, test.asked)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestServeHasTenThousandNames goes through all pages.
func TestServeHasTenThousandNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &spy{Driver: memory.New(nil), names: manyNames(10_000)}
		b, _ := boardOf(t, d, time.Hour)
		p := &page{board: b}
		var got []string
		for v := (view{}); ; {
			leave := b.join(v)
			time.Sleep(time.Second)
			now, _ := b.look(v)
			if want := fmt.Sprintf("Names %d to %d of 10000,", len(got)+1, len(got)+rowsOfPage); !strings.Contains(shownBy(t, p, v, now), want) {
				t.Fatalf("want %q in\n%s", want, shownBy(t, p, v, now))
			}
			leave()
			for _, r := range now.sheet.reports {
				got = append(got, r.Name)
			}
			if now.sheet.next == nil {
				break
			}
			v.from = *now.sheet.next
		}
		if !slices.Equal(got, d.names) {
			t.Errorf("the pages have %d names, want %d", len(got), len(d.names))
		}
		found := view{find: "/00477"}
		defer b.join(found)()
		time.Sleep(time.Second)
		if now, _ := b.look(found); now.sheet.total != 10 || now.sheet.next != nil || now.sheet.reports[0].Name != "lock/004770" {
			t.Errorf("got %+v, want ten names with %q", now.sheet, found.find)
		}
		if lists := d.lists.Load(); lists != 1 {
			t.Errorf("got %d lists, want 1: a page queries only its names", lists)
		}
	})
}

// TestServeHasAHistory lets a lock change hands while a page is open.
func TestServeHasAHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer(nil)
		b, stop := boardOf(t, server.NewDriver(), time.Second)
		client, err := dsync.New(server.NewDriver(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(t.Context())
		defer b.join(view{})()
		const grants = mostChanges
		for range grants {
			lease, err := client.Lock(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			if err := lease.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
		}
		synctest.Wait()
		now, _ := b.look(view{})
		if n := len(now.sheet.history); n != mostChanges {
			t.Fatalf("%d changes, want the last %d", n, mostChanges)
		}
		for i, c := range now.sheet.history[:4] {
			if ended := strings.HasPrefix(c.Text, "ended: held by"); c.Name != "orders" || ended != (i%2 == 0) {
				t.Errorf("change %d: got %+v", i, c)
			}
		}
		if html := shownBy(t, &page{board: b}, view{}, now); strings.Count(html, "<li>") != mostChanges {
			t.Errorf("the page shows %d changes, want %d", strings.Count(html, "<li>"), mostChanges)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestServeListsNotMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &spy{Driver: memory.New(nil), names: append([]string{strings.Repeat("x", 2000)}, manyNames(mostListed)...)}
		b, _ := boardOf(t, d, time.Hour)
		defer b.join(view{})()
		time.Sleep(time.Second)
		now, _ := b.look(view{})
		if now.sheet.total != mostListed-1 || !now.sheet.more || now.problem != "" {
			t.Errorf("got %d names, more %t, problem %q", now.sheet.total, now.sheet.more, now.problem)
		}
		if text := shownBy(t, &page{board: b}, view{}, now); !strings.Contains(text, "More names are held than are listed") {
			t.Errorf("there is no notice in\n%.1000s", text)
		}
	})
}

// TestServeDuringAnOutage makes the backend unreachable, with and without an
// open page.
func TestServeDuringAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &spy{Driver: memory.New(nil)}
		b, _ := boardOf(t, d, 2*time.Second)
		drivertest.Acquire(t, d, drivertest.Fixed(drivertest.Request("held"), time.Hour))
		p := &page{board: b}
		shown := func() string {
			now, _ := b.look(view{})
			return shownBy(t, p, view{}, now)
		}
		leave := b.join(view{})
		time.Sleep(3 * time.Second)
		if text := shown(); !strings.Contains(text, "<td>held</td>") || strings.Contains(text, "No answer") {
			t.Errorf("got\n%s", text)
		}
		before, _ := b.look(view{})
		d.Cut()
		time.Sleep(time.Minute)
		last := "No answer from the backend since " + before.last.Format("2006-01-02 15:04:05 MST")
		if text := shown(); !strings.Contains(text, last) || !strings.Contains(text, "unavailable") || !strings.Contains(text, "<td>held</td>") {
			t.Errorf("want %q and the last known locks in\n%s", last, text)
		}
		leave()
		defer b.join(view{})()
		time.Sleep(time.Minute)
		if text := shown(); !strings.Contains(text, last) || strings.Contains(text, "<td>") {
			t.Errorf("want %q and no locks in\n%s", last, text)
		}
		d.Heal()
		time.Sleep(3 * time.Second)
		if text := shown(); !strings.Contains(text, "<td>held</td>") || strings.Contains(text, "No answer") {
			t.Errorf("got\n%s", text)
		}
	})
}

// TestServeNeedsALister uses a backend that cannot list names.
func TestServeNeedsALister(t *testing.T) {
	t.Parallel()
	d := struct{ driver.Driver }{memory.New(nil)}
	t.Cleanup(func() { _ = d.Close(context.WithoutCancel(t.Context())) })
	if err := newBoard(&cli.Backend{Driver: d}, "", time.Second).run(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v, want %v", err, errors.ErrUnsupported)
	}
}
