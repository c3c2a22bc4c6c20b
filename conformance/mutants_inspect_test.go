package conformance

import (
	"context"
	"errors"
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
		breaks: "a note is cut after its first line",
		mutate: breakStatus(func(s *driver.Status) { s.Note, _, _ = strings.Cut(s.Note, "\n") }),
	},
	{
		check:  "inspect/status",
		breaks: "a note is reported only for some holds",
		mutate: breakStatus(func(s *driver.Status) {
			if len(s.Note) > 255 {
				s.Note = ""
			}
		}),
	},
	{
		check:  "inspect/status",
		breaks: "an owner is cut at its first space",
		mutate: breakStatus(func(s *driver.Status) { s.Owner, _, _ = strings.Cut(s.Owner, " ") }),
	},
	{
		check:  "inspect/status",
		breaks: "the owner is reported instead of the hold",
		mutate: breakStatus(func(s *driver.Status) { s.Hold = s.Owner }),
	},
	{
		check:  "inspect/status",
		breaks: "the first token of a block is reported instead of the last",
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
		breaks: "the whole TTL is reported as remaining",
		mutate: breakLeasesAndStatus(func(l *brokenLease, s *driver.Status) { s.TTL = l.r.TTL }),
	},
	{
		check:  "inspect/status",
		breaks: "the remaining TTL is reported as of the grant",
		mutate: breakLeasesAndStatus(func(l *brokenLease, s *driver.Status) { s.TTL = time.Until(s.Since.Add(l.r.TTL)) }),
	},
	{
		check:  "inspect/status",
		breaks: "the newest waiter is first in the queue",
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
		breaks: "a prefix matches a name and the names below it",
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
		breaks: "List knows only the holds of its own driver",
		mutate: func(d *memory.Driver) driver.Driver {
			var mine sync.Map
			b := breakList(func(name, _ string) bool { _, ok := mine.Load(name); return !ok })(d).(*broken)
			b.lease = func(l *brokenLease) { mine.Store(l.r.Name, nil) }
			return b
		},
	},
	{
		check:  "inspect/list",
		breaks: "names held by readers are not listed",
		mutate: func(d *memory.Driver) driver.Driver {
			return breakList(func(name, _ string) bool {
				s, err := d.Inspect(context.Background(), name)
				return err == nil && s.Mode == driver.Read
			})(d)
		},
	},
	{
		check:  "inspect/list",
		breaks: "a name is listed forever",
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

// breakList returns a mutation of List that leaves some names out.
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

// breakStatus returns a mutation of the holds that Inspect returns.
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

// breakLeasesAndStatus is like breakStatus, for functions that also take the
// lease.
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

var observeMutants = []mutant{
	{
		check:  "inspect/outage",
		breaks: "a name looks free when the backend does not answer",
		mutate: func(d *memory.Driver) driver.Driver {
			return &broken{Driver: d, inspect: func(ctx context.Context, name string) (driver.Status, error) {
				s, err := d.Inspect(ctx, name)
				if err != nil && !errors.Is(err, driver.ErrClosed) {
					return driver.Status{}, nil
				}
				return s, err
			}}
		},
	},
	{
		check:  "inspect/outage",
		breaks: "an outage ends a list",
		mutate: listing(func(d *memory.Driver, ctx context.Context, prefix string, yield func(string, error) bool) {
			for name, err := range d.List(ctx, prefix) {
				if err != nil && !errors.Is(err, driver.ErrClosed) || !yield(name, err) {
					return
				}
			}
		}),
	},
	{
		check:  "inspect/outage",
		breaks: "a latch looks deleted when the backend does not answer",
		mutate: breakLatches(func(d *memory.Driver, b *brokenLatches) {
			b.count = func(ctx context.Context, name string) (int, error) {
				left, err := d.Latch(ctx, name)
				if err != nil && !errors.Is(err, driver.ErrClosed) {
					return 0, nil
				}
				return left, err
			}
		}),
	},
	{
		check:  "inspect/fields",
		breaks: "of several holds, the last hold's note is reported with the first hold's other fields",
		mutate: lastLease(func(l *brokenLease, s *driver.Status) { s.Note = l.r.Note }),
	},
	{
		check:  "inspect/fields",
		breaks: "of several holds, the last hold's owner is reported with the first hold's other fields",
		mutate: lastLease(func(l *brokenLease, s *driver.Status) { s.Owner = l.r.Owner }),
	},
	{
		check:  "inspect/fields",
		breaks: "a writer is reported as a reader",
		mutate: breakStatus(func(s *driver.Status) {
			if s.Mode == driver.Write {
				s.Mode = driver.Read
			}
		}),
	},
	{
		check:  "inspect/fields",
		breaks: "a renewal counts as a grant",
		mutate: func() func(*memory.Driver) driver.Driver {
			var renewed sync.Map // times, by hold
			return func(d *memory.Driver) driver.Driver {
				b := breakStatus(func(s *driver.Status) {
					if at, ok := renewed.Load(s.Hold); ok {
						s.Since = at.(time.Time)
					}
				})(d).(*broken)
				b.lease = func(l *brokenLease) {
					l.renew = func(ctx context.Context, ttl time.Duration) error {
						renewed.Store(l.r.Hold, time.Now())
						return l.Lease.Renew(ctx, ttl)
					}
				}
				return b
			}
		}(),
	},
	{
		check:  "inspect/waiters",
		breaks: "the last waiter is still counted when the name is free",
		mutate: func() func(*memory.Driver) driver.Driver {
			var waited sync.Map // names
			return func(d *memory.Driver) driver.Driver {
				b := &broken{Driver: d}
				b.acquire = func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
					if s, _ := d.Inspect(ctx, r.Name); s.Held && !r.NoWait {
						waited.Store(r.Name, true)
					}
					return d.Acquire(ctx, r)
				}
				b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
					s, err := d.Inspect(ctx, name)
					if _, ok := waited.Load(name); ok && err == nil && !s.Held {
						s.Waiters++
					}
					return s, err
				}
				return b
			}
		}(),
	},
	{
		check:  "inspect/names",
		breaks: "a prefix matches without regard to case",
		mutate: listing(func(d *memory.Driver, ctx context.Context, prefix string, yield func(string, error) bool) {
			for name, err := range d.List(ctx, "") {
				if matches := len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix); err != nil || matches {
					if !yield(name, err) {
						return
					}
				}
			}
		}),
	},
	{
		check:  "inspect/names",
		breaks: "an underscore in a prefix matches any character",
		mutate: listing(func(d *memory.Driver, ctx context.Context, prefix string, yield func(string, error) bool) {
			for name, err := range d.List(ctx, "") {
				matches := len(name) >= len(prefix)
				for i := 0; matches && i < len(prefix); i++ {
					matches = prefix[i] == '_' || prefix[i] == name[i]
				}
				if err != nil || matches {
					if !yield(name, err) {
						return
					}
				}
			}
		}),
	},
	{
		check:  "inspect/names",
		breaks: "nothing is listed for a prefix with a bracket",
		mutate: breakList(func(_, prefix string) bool { return strings.HasSuffix(prefix, "[") }),
	},
	{
		check:  "inspect/names",
		breaks: "nothing is listed for the empty prefix",
		mutate: breakList(func(_, prefix string) bool { return prefix == "" }),
	},
	{
		check:  "inspect/names",
		breaks: "a name is cut after its first line",
		mutate: listing(func(d *memory.Driver, ctx context.Context, prefix string, yield func(string, error) bool) {
			for name, err := range d.List(ctx, prefix) {
				name, _, _ = strings.Cut(name, "\n")
				if !yield(name, err) {
					return
				}
			}
		}),
	},
	{
		check:  "inspect/many",
		breaks: "a list ends after 1,000 names",
		mutate: listing(func(d *memory.Driver, ctx context.Context, prefix string, yield func(string, error) bool) {
			n := 0
			for name, err := range d.List(ctx, prefix) {
				if n++; n > 1000 || !yield(name, err) {
					return
				}
			}
		}),
	},
	{
		check:  "inspect/dead",
		breaks: "a hold that was not released is listed forever",
		mutate: func() func(*memory.Driver) driver.Driver {
			var held sync.Map // names
			return func(d *memory.Driver) driver.Driver {
				b := listing(func(d *memory.Driver, ctx context.Context, prefix string, yield func(string, error) bool) {
					var names []string
					for name, err := range d.List(ctx, prefix) {
						if names = append(names, name); !yield(name, err) {
							return
						}
					}
					held.Range(func(key, _ any) bool {
						name := key.(string)
						return !strings.HasPrefix(name, prefix) || slices.Contains(names, name) || yield(name, nil)
					})
				})(d).(*broken)
				b.lease = func(l *brokenLease) {
					if !l.r.Fixed {
						return
					}
					held.Store(l.r.Name, true)
					l.release = func(ctx context.Context) error {
						held.Delete(l.r.Name)
						return l.Lease.Release(ctx)
					}
				}
				return b
			}
		}(),
	},
}

// listing returns a mutation that replaces List.
func listing(f func(d *memory.Driver, ctx context.Context, prefix string, yield func(string, error) bool)) func(*memory.Driver) driver.Driver {
	return func(d *memory.Driver) driver.Driver {
		return &broken{Driver: d, list: func(ctx context.Context, prefix string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) { f(d, ctx, prefix, yield) }
		}}
	}
}

// lastLease returns a mutation of the holds that Inspect returns. f also takes
// the last lease of the name.
func lastLease(f func(*brokenLease, *driver.Status)) func(*memory.Driver) driver.Driver {
	var leases sync.Map // by name
	return func(d *memory.Driver) driver.Driver {
		b := &broken{Driver: d}
		b.inspect = func(ctx context.Context, name string) (driver.Status, error) {
			s, err := d.Inspect(ctx, name)
			if l, ok := leases.Load(name); ok && s.Held {
				f(l.(*brokenLease), &s)
			}
			return s, err
		}
		b.lease = func(l *brokenLease) { leases.Store(l.r.Name, l) }
		return b
	}
}
