// Package castest tests stores of package driver/cas that have no network for
// package wire to disturb: in-process stores, and stores behind a client
// library that accepts neither an address nor a dialer.
package castest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/driver/cas"
)

// Disturb returns a store that passes the requests of one client on to s, and
// the Link through which the suite disturbs these requests. The store is a
// Notifier if s is a Notifier.
func Disturb(tb testing.TB, s cas.Store) (cas.Store, *conformance.Link) {
	n := &network{store: s, changed: make(chan struct{}), over: make(chan struct{}), deaf: map[*listener]bool{}}
	tb.Cleanup(func() { // no request is under way now
		close(n.over)
		n.onTheirWay.Wait()
	})
	if notifier, ok := s.(cas.Notifier); ok {
		return notifying{n, notifier}, n.link()
	}
	return n, n.link()
}

// network is a Store behind a network that can be disturbed.
type network struct {
	store cas.Store

	mu      sync.Mutex
	fault   fault
	changed chan struct{}      // closed when the fault changes
	deaf    map[*listener]bool // listeners that missed a change

	over       chan struct{}
	onTheirWay sync.WaitGroup // requests with no caller waiting for them
}

// fault is the fate of requests, or of the next request.
type fault struct {
	cut, loses, hangs, drops, once bool
	late                           time.Duration
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
	n.mu.Lock()
	n.fault = f
	close(n.changed)
	n.changed = make(chan struct{})
	var missed []*listener
	if f == (fault{}) {
		missed = slices.Collect(maps.Keys(n.deaf))
		clear(n.deaf)
	}
	n.mu.Unlock()
	for _, l := range missed {
		l.tell()
	}
}

// take returns the fault of the next request, and a channel that is closed when
// the fault changes.
func (n *network) take() (fault, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.fault
	if f.once {
		n.fault = fault{}
	}
	return f, n.changed
}

var errNetwork = errors.New("the network is down")

// request carries out a request immediately, late or never, depending on the
// fault.
func request[T any](ctx context.Context, n *network, do func(context.Context) (T, error)) (answer T, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	f, changed := n.take()
	switch {
	case f.cut:
		return answer, errNetwork
	case f.drops:
		<-ctx.Done()
		return answer, ctx.Err()
	case f.hangs:
		select {
		case <-changed:
		case <-ctx.Done():
			n.onTheirWay.Go(func() {
				select {
				case <-changed:
					time.Sleep(10 * time.Millisecond) // later than requests that were sent after it
					_, _ = do(context.WithoutCancel(ctx))
				case <-n.over:
				}
			})
			return answer, ctx.Err()
		}
	}
	answer, err = do(ctx)
	if f.loses {
		return *new(T), errors.Join(errNetwork, err)
	}
	if f.late == 0 {
		return answer, err
	}
	timer := time.NewTimer(f.late)
	defer timer.Stop()
	select {
	case <-timer.C:
		return answer, err
	case <-ctx.Done():
		return *new(T), ctx.Err()
	}
}

func (n *network) Read(ctx context.Context, name string) (cas.Entry, error) {
	return request(ctx, n, func(ctx context.Context) (cas.Entry, error) { return n.store.Read(ctx, name) })
}

func (n *network) Write(ctx context.Context, name string, value []byte, version string) (string, error) {
	return request(ctx, n, func(ctx context.Context) (string, error) { return n.store.Write(ctx, name, value, version) })
}

func (n *network) Delete(ctx context.Context, name, version string) error {
	_, err := request(ctx, n, func(ctx context.Context) (string, error) { return "", n.store.Delete(ctx, name, version) })
	return err
}

// WriteAll passes one request for the whole batch. If the store is not a
// Batcher, each write is a separate request.
func (n *network) WriteAll(ctx context.Context, writes []*cas.Write) error {
	b, ok := n.store.(cas.Batcher)
	if !ok {
		for _, w := range writes {
			w.Next, w.Err = n.Write(ctx, w.Name, w.Value, w.Version)
		}
		return nil
	}
	answers, err := request(ctx, n, func(ctx context.Context) (answers []*cas.Write, err error) {
		for _, w := range writes {
			answers = append(answers, &cas.Write{Name: w.Name, Value: w.Value, Version: w.Version})
		}
		return answers, b.WriteAll(ctx, answers)
	})
	for i := range answers {
		writes[i].Next, writes[i].Err = answers[i].Next, answers[i].Err
	}
	return err
}

// List passes one request for the whole list.
func (n *network) List(ctx context.Context, prefix string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		all, err := request(ctx, n, func(ctx context.Context) (all []cas.Entry, err error) {
			lister, ok := n.store.(cas.Lister)
			if !ok {
				return nil, fmt.Errorf("the store is not a Lister: %w", errors.ErrUnsupported)
			}
			for e, err := range lister.List(ctx, prefix) {
				if err != nil {
					return nil, err
				}
				all = append(all, e)
			}
			return all, nil
		})
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(cas.Entry{}, err)
		}
	}
}

// notifying is a network whose store reports changes.
type notifying struct {
	*network
	notifier cas.Notifier
}

// listener is the state of one call to Notify.
type listener struct {
	mu      sync.Mutex
	changed func() // nil after stop
}

func (l *listener) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed != nil {
		l.changed()
	}
}

// Notify implements cas.Notifier. No message arrives during an outage.
func (n notifying) Notify(name string, changed func()) (func(), error) {
	l := &listener{changed: changed}
	stop, err := n.notifier.Notify(name, func() {
		n.mu.Lock()
		outage := n.fault.cut || n.fault.drops || (n.fault.hangs || n.fault.loses) && !n.fault.once
		if outage {
			n.deaf[l] = true
		}
		n.mu.Unlock()
		if !outage {
			l.tell()
		}
	})
	return func() {
		if stop != nil {
			stop()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed = nil
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.deaf, l)
	}, err
}
