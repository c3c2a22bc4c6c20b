package serve

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/admin"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// Limits on the load that all pages of `dsync serve` together put on the
// backend, and on the stored results.
const (
	mostListed    = 100_000                // names that one look lists
	rowsOfPage    = 100                    // names on one page
	mostChanges   = 100                    // changes of holders, kept for all pages
	askedAtOnce   = 50                     // names queried together, followed by a pause
	askPause      = 100 * time.Millisecond // so 500 names per second are inspected
	askPatience   = 10 * time.Second       // the wait for the results of askedAtOnce names
	mostPages     = 100                    // pages open at a time
	writePatience = 5 * time.Second        // the wait for a page that does not read
)

// board inspects a backend on behalf of all pages. A look lists the names and
// queries the holders of the names on pages. Between two looks it waits for a
// while, and at least as long as the previous look took. While no page is open,
// board sends no requests.
type board struct {
	backend *cli.Backend
	prefix  string
	every   time.Duration
	wake    chan struct{} // has an element when a page was opened

	// The following fields belong to run.
	names []string
	more  bool // the backend has more names than these
	pace  *time.Ticker
	// The last report of each listed name that was free or is on a page.
	// It is nil before the first list.
	known   map[string]admin.Report
	history []change // newest first

	mu      sync.Mutex // guards what follows
	views   map[view]int
	sheets  map[view]*sheet
	last    time.Time // time of the last successful response
	problem string    // why the backend does not respond
	changed chan struct{}
}

// view is the part of the names that a page shows: the names that contain a
// text, starting from a given name.
type view struct{ find, from string }

// sheet is the content of a view at one time. It is never changed.
type sheet struct {
	reports            []admin.Report
	first, last, total int // positions among the matching names, starting at 1
	more               bool
	prev, next         *string // the first names of the previous and next pages
	history            []change
}

// change is a grant, or the end of a hold, that the board has detected.
type change struct{ At, Name, Text string }

// posted is the whole content of a page. A page is sent again if its content
// has changed.
type posted struct {
	sheet   *sheet
	last    time.Time
	problem string
}

func newBoard(b *cli.Backend, prefix string, every time.Duration) *board {
	return &board{backend: b, prefix: prefix, every: every, wake: make(chan struct{}, 1), views: map[view]int{}, sheets: map[view]*sheet{},
		changed: make(chan struct{})}
}

// join makes the board inspect the names of a view until leave is called.
func (b *board) join(v view) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.views[v]++
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.views[v]--; b.views[v] == 0 {
			delete(b.views, v)
			delete(b.sheets, v)
		}
	}
}

// look returns the content of a view, and a channel that is closed when the
// board has news.
func (b *board) look(v view) (posted, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return posted{b.sheets[v], b.last, b.problem}, b.changed
}

// publish publishes a response from the backend, or the error.
func (b *board) publish(v view, s *sheet, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.problem = cli.Printable(err.Error())
	} else {
		b.problem, b.last = "", time.Now()
	}
	if s != nil && b.views[v] > 0 {
		b.sheets[v] = s
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// wanted returns the views of all pages, and the views without content.
func (b *board) wanted() (all, missing []view) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for v := range b.views {
		all = append(all, v)
		if b.sheets[v] == nil {
			missing = append(missing, v)
		}
	}
	return all, missing
}

// run inspects the backend until ctx ends. The first look happens without a
// page, so run fails immediately if the backend cannot list names.
func (b *board) run(ctx context.Context) error {
	b.pace = time.NewTicker(askPause)
	defer b.pace.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for due := time.Now(); ; {
		all, missing := b.wanted()
		begun, err := time.Now(), error(nil)
		if begun.Before(due) {
			err = b.fill(ctx, missing)
		} else {
			if err = b.list(ctx); err == nil {
				err = b.fill(ctx, all)
			}
			due = time.Now().Add(max(b.every, time.Since(begun)))
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			b.publish(view{}, nil, err)
		}
		if errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		var next <-chan time.Time // never, while no page is open
		if len(all) > 0 {
			timer.Reset(time.Until(due))
			next = timer.C
		}
		select {
		case <-next:
		case <-b.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// list lists the names. It omits names that no dsync client can lock, because
// their holders cannot be queried.
func (b *board) list(ctx context.Context) error {
	names, more, err := b.backend.List(ctx, b.prefix, mostListed)
	if err != nil {
		return err
	}
	old := b.names
	b.names, b.more = slices.DeleteFunc(names, func(name string) bool {
		err := cli.CheckName(name)
		return err != nil && !errors.Is(err, migrate.ErrReserved)
	}), more
	if b.known == nil {
		b.known = map[string]admin.Report{}
		return nil
	}
	for _, name := range b.names { // a free name is not listed
		if _, listed := slices.BinarySearch(old, name); !listed {
			b.known[name] = admin.Report{}
		}
	}
	for name := range b.known {
		if _, listed := slices.BinarySearch(b.names, name); !listed {
			b.note([]admin.Report{{Name: name, Seen: time.Now()}})
			delete(b.known, name)
		}
	}
	return nil
}

// fill queries the holders of the names in some views and publishes each view.
func (b *board) fill(ctx context.Context, views []view) error {
	for _, v := range views {
		s, names := b.cut(v)
		for some := range slices.Chunk(names, askedAtOnce) {
			select {
			case <-b.pace.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			bounded, cancel := context.WithTimeout(ctx, askPatience)
			reports, err := admin.Inspect(bounded, b.backend, some)
			cancel()
			if err != nil {
				return err
			}
			b.note(reports)
			s.reports = append(s.reports, slices.DeleteFunc(reports, func(r admin.Report) bool { return !r.Held })...)
		}
		s.history = slices.Clone(b.history)
		b.publish(v, s, nil)
	}
	return nil
}

// note compares reports with the previous ones. It misses a hold that began and
// ended between two looks, and all changes while no page is open.
func (b *board) note(reports []admin.Report) {
	for _, r := range reports {
		before, seen := b.known[r.Name]
		b.known[r.Name] = r
		if !seen || before.Grant() == r.Grant() {
			continue
		}
		text := r.Summary()
		if !r.Held {
			text = "ended: " + before.Summary()
		}
		b.history = slices.Insert(b.history, 0, change{r.Seen.Format("15:04:05"), cli.Printable(r.Name), text})
		b.history = b.history[:min(len(b.history), mostChanges)]
	}
}

// cut returns a sheet without reports for v and the names that it will show.
func (b *board) cut(v view) (*sheet, []string) {
	names := b.names
	if v.find != "" {
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.Contains(name, v.find) })
	}
	i, _ := slices.BinarySearch(names, v.from)
	end := min(i+rowsOfPage, len(names))
	s := &sheet{first: i + 1, last: end, total: len(names), more: b.more}
	if i > 0 {
		s.prev = &names[max(0, i-rowsOfPage)]
	}
	if end < len(names) {
		s.next = &names[end]
	}
	return s, names[i:end]
}
