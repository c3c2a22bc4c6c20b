package cas_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver/cas"
)

// memory is a store in the process.
type memory struct {
	clock, notifies bool

	mu      sync.Mutex
	last    int // version
	records map[string]cas.Entry
	calls   map[*func()]string // of Notify, with their names
}

func (m *memory) read(name string) (cas.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.records[name]
	if m.clock {
		e.Now = time.Now()
	}
	return e, nil
}

// write replaces a record, or removes it if the value is nil.
func (m *memory) write(name string, value []byte, version string) (next string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[name].Version != version {
		return "", cas.ErrChanged
	}
	if m.records == nil {
		m.records = map[string]cas.Entry{}
	}
	m.last++
	next = strconv.Itoa(m.last)
	e := cas.Entry{Value: value, Version: next}
	if m.clock {
		e.Written = time.Now()
	}
	if m.records[name] = e; value == nil {
		delete(m.records, name)
	}
	for f, other := range m.calls {
		if other == name {
			(*f)()
		}
	}
	return next, nil
}

// store returns a Store over a network, or without one.
func (m *memory) store(n *network) cas.Store {
	if n == nil {
		n = newNetwork(m)
	}
	if m.notifies {
		return notifying{n}
	}
	return n
}

// network is a Store behind a network that can be disturbed.
type network struct {
	memory *memory

	mu      sync.Mutex
	fault   fault
	changed chan struct{} // closed when the fault has changed
	deaf    map[*func()]string

	over       chan struct{}
	onTheirWay sync.WaitGroup // requests that nobody waits for any more
}

// fault is what becomes of requests. The first of them uses up once.
type fault struct {
	cut, loses, hangs, drops, once bool
	late                           time.Duration
}

func newNetwork(m *memory) *network {
	return &network{memory: m, changed: make(chan struct{}), over: make(chan struct{}), deaf: map[*func()]string{}}
}

func (n *network) link() *conformance.Link {
	set := func(f fault) func() { return func() { n.set(f) } }
	return &conformance.Link{
		Cut:         set(fault{cut: true}),
		Hang:        set(fault{hangs: true}),
		LoseAnswers: set(fault{loses: true}),
		Delay:       func(d time.Duration) { n.set(fault{late: d}) },
		Drop:        set(fault{drops: true}),
		LoseOne:     set(fault{loses: true, once: true}),
		HoldOne:     set(fault{hangs: true, once: true}),
		Heal:        set(fault{}),
	}
}

func (n *network) set(f fault) {
	n.memory.mu.Lock() // as for every call that reports a change
	defer n.memory.mu.Unlock()
	n.mu.Lock()
	n.fault = f
	close(n.changed)
	n.changed = make(chan struct{})
	var missed []*func()
	if f == (fault{}) {
		missed = slices.Collect(maps.Keys(n.deaf))
		clear(n.deaf)
	}
	n.mu.Unlock()
	for _, call := range missed {
		(*call)()
	}
}

var errNetwork = errors.New("the network is down")

// take returns the fault of the next request, and when there is another fault.
func (n *network) take() (fault, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.fault
	if f.once {
		n.fault = fault{}
	}
	return f, n.changed
}

// request has a request carried out, now, late or never.
func (n *network) request(ctx context.Context, carryOut func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, changed := n.take()
	switch {
	case f.cut:
		return errNetwork
	case f.drops:
		<-ctx.Done()
		return ctx.Err()
	case f.hangs:
		select {
		case <-changed:
		case <-ctx.Done():
			n.onTheirWay.Go(func() {
				select {
				case <-changed:
					time.Sleep(10 * time.Millisecond) // later than requests that were sent after it
					carryOut()
				case <-n.over:
				}
			})
			return ctx.Err()
		}
	}
	carryOut()
	if f.loses {
		return errNetwork
	}
	timer := time.NewTimer(f.late)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end drops what is still on its way.
func (n *network) end() {
	close(n.over)
	n.onTheirWay.Wait()
}

func (n *network) Read(ctx context.Context, name string) (e cas.Entry, err error) {
	done := make(chan cas.Entry, 1)
	if err := n.request(ctx, func() { e, _ := n.memory.read(name); done <- e }); err != nil {
		return e, err
	}
	return <-done, nil
}

type written struct {
	next string
	err  error
}

func (n *network) Write(ctx context.Context, name string, value []byte, version string) (string, error) {
	done := make(chan written, 1)
	if err := n.request(ctx, func() { next, err := n.memory.write(name, value, version); done <- written{next, err} }); err != nil {
		return "", err
	}
	w := <-done
	return w.next, w.err
}

func (n *network) Delete(ctx context.Context, name, version string) error {
	_, err := n.Write(ctx, name, nil, version)
	return err
}

// List is one request for each call.
func (n *network) List(ctx context.Context, prefix string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		done := make(chan []cas.Entry, 1)
		if err := n.request(ctx, func() { done <- n.memory.list(prefix) }); err != nil {
			yield(cas.Entry{}, err)
			return
		}
		for _, e := range <-done {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (m *memory) list(prefix string) (all []cas.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, e := range m.records {
		if strings.HasPrefix(name, prefix) {
			if m.clock {
				e.Now = time.Now()
			}
			all = append(all, e)
		}
	}
	return all
}

// notifying is a network with messages.
type notifying struct{ *network }

func (n notifying) Notify(name string, changed func()) (stop func(), err error) {
	var call func()
	call = func() { // with memory.mu held
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.fault != (fault{}) && !n.fault.once && n.fault.late == 0 {
			n.deaf[&call] = name
			return
		}
		changed()
	}
	m := n.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls == nil {
		m.calls = map[*func()]string{}
	}
	m.calls[&call] = name
	call()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.calls, &call)
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.deaf, &call)
	}, nil
}
