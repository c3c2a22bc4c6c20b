package cas_test

import (
	"context"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver/cas"
)

// memory is a store in the process.
type memory struct {
	clock  bool
	rising bool // otherwise the value itself is the version

	mu   sync.Mutex
	last int // version

	requests, batches int // counted by the tests

	records map[string]cas.Entry
	calls   map[*func()]string // of Notify, with their names
}

func (m *memory) Read(_ context.Context, name string) (cas.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	return m.entry(name), nil
}

// counted returns the number of requests since the last call to counted.
func (m *memory) counted() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, m.requests = m.requests, 0
	return n
}

// entry is called with mu held.
func (m *memory) entry(name string) cas.Entry {
	e := m.records[name]
	if m.clock {
		e.Now = time.Now()
	}
	return e
}

func (m *memory) Write(_ context.Context, name string, value []byte, version string) (next string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if m.records[name].Version != version {
		return "", cas.ErrChanged
	}
	m.last++
	e := cas.Entry{Value: value, Version: string(value)}
	if m.rising {
		e.Version = strconv.Itoa(m.last)
	}
	if m.clock {
		e.Written = time.Now()
	}
	m.records[name] = e
	m.tell(name)
	return e.Version, nil
}

func (m *memory) Delete(_ context.Context, name, version string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests++
	if m.records[name].Version != version {
		return cas.ErrChanged
	}
	delete(m.records, name)
	m.tell(name)
	return nil
}

func (m *memory) List(_ context.Context, prefix string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for name := range m.records {
			if strings.HasPrefix(name, prefix) && !yield(m.entry(name), nil) {
				return
			}
		}
	}
}

// tell is called with mu held.
func (m *memory) tell(name string) {
	for changed, other := range m.calls {
		if other == name {
			(*changed)()
		}
	}
}

func (m *memory) WriteAll(ctx context.Context, writes []*cas.Write) error {
	m.mu.Lock()
	m.batches++
	m.mu.Unlock()
	for _, w := range writes {
		w.Next, w.Err = m.Write(ctx, w.Name, w.Value, w.Version)
	}
	return nil
}

// notifying is a memory that reports changes.
type notifying struct{ *memory }

func (m notifying) Notify(name string, changed func()) (stop func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[&changed] = name
	changed()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.calls, &changed)
	}, nil
}
