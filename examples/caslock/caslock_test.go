//go:build unix

package caslock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver"
)

func TestMain(m *testing.M) {
	conformance.RunWorker()
	m.Run()
}

// TestConformance runs the suite on a folder, in real time and with other processes.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Harness{Backend: func(tb testing.TB) *conformance.Backend {
		dir := tb.TempDir()
		b := backend(Folder(dir), true)
		b.URL = "caslock://" + dir
		b.Ping = func(ctx context.Context) error { // the disk may be busy
			_, version, err := Folder(dir).Get(ctx, "ping")
			if err == nil {
				_, err = Folder(dir).Put(ctx, "ping", []byte("x"), version)
			}
			return err
		}
		return b
	}})
}

// TestConformanceInFakeTime runs the suite on a store in memory, with exact times.
func TestConformanceInFakeTime(t *testing.T) {
	t.Parallel()
	for _, fenced := range []bool{true, false} {
		conformance.Run(t, conformance.Harness{FakeTime: true, Backend: func(testing.TB) *conformance.Backend {
			return backend(&inMemory{}, fenced)
		}})
	}
}

func backend(s Store, fenced bool) *conformance.Backend {
	return &conformance.Backend{
		New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
			w := &network{Store: s, changed: make(chan struct{}), over: make(chan struct{})}
			tb.Cleanup(w.end)
			return New(w, 20*time.Millisecond, fenced), w.link()
		},
		Expire: func(tb testing.TB, name string) {
			if err := New(s, time.Second, fenced).free(tb.Context(), name); err != nil {
				tb.Error(err)
			}
		},
	}
}

// free ends whoever's hold there is.
func (d *Driver) free(ctx context.Context, name string) error {
	_, err := d.change(ctx, name, func(now record) (record, error) { return record{Token: now.Token}, nil })
	return err
}

// inMemory is a Store.
type inMemory struct {
	mu      sync.Mutex
	records map[string]versioned
}

type versioned struct {
	version uint64
	value   []byte
}

func (m *inMemory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[key]
	return r.value, r.version, nil
}

func (m *inMemory) Put(_ context.Context, key string, value []byte, version uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[key].version != version {
		return 0, errConflict
	}
	if m.records == nil {
		m.records = map[string]versioned{}
	}
	m.records[key] = versioned{version + 1, value}
	return version + 1, nil
}

// network is a Store behind a network that can be disturbed.
type network struct {
	Store

	mu      sync.Mutex
	cut     bool
	hangs   bool
	loses   bool
	late    time.Duration
	changed chan struct{} // closed when any of these has changed

	over       chan struct{}
	onTheirWay sync.WaitGroup // writes that nobody waits for any more
}

var errNetwork = errors.New("the network is down")

func (n *network) link() *conformance.Link {
	set := func(change func()) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.cut, n.hangs, n.loses, n.late = false, false, false, 0
		change()
		close(n.changed)
		n.changed = make(chan struct{})
	}
	return &conformance.Link{
		Cut:         func() { set(func() { n.cut = true }) },
		Hang:        func() { set(func() { n.hangs = true }) },
		LoseAnswers: func() { set(func() { n.loses = true }) },
		Delay:       func(d time.Duration) { set(func() { n.late = d }) },
		Heal:        func() { set(func() {}) },
	}
}

// pass returns when a request or an answer has passed.
func (n *network) pass(ctx context.Context, answer bool) error {
	for {
		n.mu.Lock()
		cut, hangs, late, changed := n.cut || answer && n.loses, n.hangs, n.late, n.changed
		n.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case cut:
			return errNetwork
		case !hangs && (late == 0 || !answer):
			return nil
		}
		var passes <-chan time.Time
		if late > 0 {
			passes = time.After(late)
		}
		select {
		case <-passes:
			return nil
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// state returns whether the network hangs, and what is closed when that has changed.
func (n *network) state() (hangs bool, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hangs, n.changed
}

// end drops what is still on its way.
func (n *network) end() {
	close(n.over)
	n.onTheirWay.Wait()
}

func (n *network) Get(ctx context.Context, key string) (value []byte, version uint64, err error) {
	if err = n.pass(ctx, false); err == nil {
		value, version, err = n.Store.Get(ctx, key)
	}
	return value, version, errors.Join(err, n.pass(ctx, true))
}

// Put is carried out late if the network hangs for longer than the caller waits.
func (n *network) Put(ctx context.Context, key string, value []byte, version uint64) (next uint64, err error) {
	if err = n.pass(ctx, false); err == nil {
		next, err = n.Store.Put(ctx, key, value, version)
	} else if ctx.Err() != nil {
		n.onTheirWay.Go(func() {
			for hangs, changed := n.state(); hangs; hangs, changed = n.state() {
				select {
				case <-changed:
				case <-n.over:
					return
				}
			}
			time.Sleep(10 * time.Millisecond) // later than requests that were sent after it
			_, _ = n.Store.Put(context.WithoutCancel(ctx), key, value, version)
		})
	}
	return next, errors.Join(err, n.pass(ctx, true))
}
