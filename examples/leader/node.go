//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
)

const (
	planEvery = 100 * time.Millisecond
	leaveFor  = 5 * time.Second // how long a node tries to release its locks
)

// node is one candidate. While it leads, it writes the plan. Its page shows the
// leader and the plan.
type node struct {
	client   *dsync.Client
	election string
	store    *storeClient
	page     *page
	url      string // of the page
	say      func(event)
}

// event is a message from a node to the demonstration.
type event struct {
	Kind kind
	URL  string `json:",omitempty"` // of the page that is ready
	Term uint64 `json:",omitempty"`
	Why  string `json:",omitempty"` // the node has ended
}

type kind string

const (
	ready   kind = "ready"   // the page is available
	elected kind = "elected" // the first of the term
	over    kind = "over"    // the last of the term
)

// runNode runs a node until ctx ends. open connects to the backend, with the
// URL of the node's page as the note of its locks, so that observers of the
// election can find the leader.
func runNode(ctx context.Context, open func(ctx context.Context, note string) (*dsync.Client, error), election, store string,
	say func(event)) (err error) {
	n := &node{election: election, store: newStoreClient(store), page: newPage(), say: say}
	url, stop, err := serve(n.page)
	if err != nil {
		return err
	}
	defer stop()
	n.url = url
	n.page.update(func(s *state) { s.Node = url })
	if n.client, err = open(ctx, url); err != nil {
		return err
	}
	say(event{Kind: ready, URL: url})
	err = n.run(ctx)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveFor)
	defer cancel()
	return errors.Join(err, n.client.Close(leaving))
}

// run returns on request or with the first error.
func (n *node) run(asked context.Context) error {
	ctx, cancel := context.WithCancelCause(asked)
	defer cancel(nil)
	var work sync.WaitGroup
	defer work.Wait()
	for _, part := range []func(context.Context) error{n.candidate, n.observe, n.follow} {
		work.Go(func() { // ends when ctx ends
			if err := part(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	if asked.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// candidate leads each time that it is elected.
func (n *node) candidate(ctx context.Context) error {
	return dsync.Elect(ctx, n.client, n.election, n.lead)
}

// lead writes one plan after the other until the term has ended. It sends each
// plan to the store with the token of the term.
func (n *node) lead(ctx context.Context, term *dsync.Lease) (err error) {
	p := plan{Leader: n.url, Term: term.Token(), Since: time.Now().UTC()}
	n.say(event{Kind: elected, Term: p.Term})
	defer func() { n.say(event{Kind: over, Term: p.Term, Why: fmt.Sprint(cmp.Or(context.Cause(ctx), err))}) }()
	tick := time.NewTicker(planEvery)
	defer tick.Stop()
	for {
		p.Number++
		if err = n.store.write(ctx, p); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// observe shows the leader.
func (n *node) observe(ctx context.Context) error {
	for status, err := range n.client.Observe(ctx, n.election) {
		if err != nil {
			return err
		}
		n.page.update(func(s *state) { s.Leader = status.Note })
	}
	return nil
}

// follow shows the plan.
func (n *node) follow(ctx context.Context) error {
	tick := time.NewTicker(planEvery)
	defer tick.Stop()
	for {
		p, err := n.store.read(ctx)
		if err != nil {
			return err
		}
		n.page.update(func(s *state) { s.Plan = p })
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
