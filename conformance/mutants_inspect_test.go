package conformance

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

var inspectMutants = []mutant{
	{
		check:  "inspect/status",
		breaks: "a note is cut after 255 bytes",
		mutate: breakStatus(func(s *driver.Status) { s.Note = s.Note[:min(len(s.Note), 255)] }),
	},
	{
		check:  "inspect/status",
		breaks: "a note ends with its first line",
		mutate: breakStatus(func(s *driver.Status) { s.Note, _, _ = strings.Cut(s.Note, "\n") }),
	},
	{
		check:  "inspect/status",
		breaks: "a note is told of some holds only",
		mutate: breakStatus(func(s *driver.Status) {
			if len(s.Note) > 255 {
				s.Note = ""
			}
		}),
	},
	{
		check:  "inspect/status",
		breaks: "an owner ends with its first space",
		mutate: breakStatus(func(s *driver.Status) { s.Owner, _, _ = strings.Cut(s.Owner, " ") }),
	},
	{
		check:  "inspect/status",
		breaks: "a hold is told by its owner",
		mutate: breakStatus(func(s *driver.Status) { s.Hold = s.Owner }),
	},
	{
		check:  "inspect/status",
		breaks: "the first token of a block is told for the last",
		mutate: breakStatus(func(s *driver.Status) {
			if s.Token > 4 {
				s.Token -= 4
			}
		}),
	},
	{
		check:  "inspect/status",
		breaks: "every hold has been granted just now",
		mutate: breakStatus(func(s *driver.Status) { s.Since = time.Now() }),
	},
	{
		check:  "inspect/status",
		breaks: "the whole TTL seems to be left",
		mutate: breakLeasesAndStatus(func(l *brokenLease, s *driver.Status) { s.TTL = l.r.TTL }),
	},
	{
		check:  "inspect/status",
		breaks: "what is left of the TTL is told as of the grant",
		mutate: breakLeasesAndStatus(func(l *brokenLease, s *driver.Status) { s.TTL = time.Until(s.Since.Add(l.r.TTL)) }),
	},
	{
		check:  "inspect/status",
		breaks: "the last that came stands first in the queue",
		mutate: breakStatus(func(s *driver.Status) { slices.Reverse(s.Queue) }),
	},
	{
		check:  "inspect/status",
		breaks: "the queue begins with the holder",
		mutate: breakStatus(func(s *driver.Status) { s.Queue = append([]string{s.Owner}, s.Queue...) }),
	},
	{
		check:  "inspect/list",
		breaks: "names below another are not listed",
		mutate: breakList(func(name, prefix string) bool { return strings.Count(name, "/") > 3 }),
	},
	{
		check:  "inspect/list",
		breaks: "a prefix is a name, and what is below it",
		mutate: breakList(func(name, prefix string) bool { return name != prefix && !strings.HasPrefix(name, prefix+"/") }),
	},
	{
		check:  "inspect/list",
		breaks: "names are listed as the backend encodes them",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, list: func(ctx context.Context, prefix string) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for name, err := range d.List(ctx, prefix) {
						if !yield(strings.ReplaceAll(name, "%", "%25"), err) {
							return
						}
					}
				}
			}}
		},
	},
	{
		check:  "inspect/list",
		breaks: "List knows the holds of its own driver alone",
		mutate: func(d *memory.Driver) driver.Driver {
			var mine sync.Map
			b := breakList(func(name, _ string) bool { _, ok := mine.Load(name); return !ok })(d).(*broken)
			b.lease = func(l *brokenLease) { mine.Store(l.r.Name, nil) }
			return b
		},
	},
	{
		check:  "inspect/list",
		breaks: "names that are read are not listed",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakList(func(name, _ string) bool {
				s, err := d.Inspect(context.Background(), name)
				return err == nil && s.Mode == driver.Read
			})(d)
		},
	},
	{
		check:  "inspect/list",
		breaks: "a name is listed for ever",
		mutate: func(d *memory.Driver) driver.Driver {
			var all sync.Map
			b := &broken{Driver: d, lease: func(l *brokenLease) { all.Store(l.r.Name, nil) }}
			b.list = func(ctx context.Context, prefix string) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for name, err := range d.List(ctx, prefix) {
						if !yield(name, err) {
							return
						}
					}
					all.Range(func(name, _ any) bool { return !strings.HasPrefix(name.(string), prefix) || yield(name.(string), nil) })
				}
			}
			return b
		},
	},
}

// breakList returns a mutation of what is listed: some names are left out.
func breakList(without func(name, prefix string) bool) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, list: func(ctx context.Context, prefix string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for name, err := range d.List(ctx, prefix) {
					if err == nil && without(name, prefix) {
						continue
					}
					if !yield(name, err) {
						return
					}
				}
			}
		}}
	}
}

// breakStatus returns a mutation of what Inspect says of holds.
func breakStatus(f func(*driver.Status)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
			s, err := d.Inspect(ctx, name)
			if err == nil && s.Hold != "" {
				f(&s)
			}
			return s, err
		}}
	}
}

// breakLeasesAndStatus is breakStatus for what takes the lease as well.
func breakLeasesAndStatus(f func(*brokenLease, *driver.Status)) func(*memory.Driver) driver.Driver {
	var leases sync.Map // by hold
	return func(d *memory.Driver) driver.Driver {
		b := breakStatus(func(s *driver.Status) {
			if l, ok := leases.Load(s.Hold); ok {
				f(l.(*brokenLease), s)
			}
		})(d).(*broken)
		b.lease = func(l *brokenLease) { leases.Store(l.r.Hold, l) }
		return b
	}
}
