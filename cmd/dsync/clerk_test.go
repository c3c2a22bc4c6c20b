package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
)

// clerk is a process that locks names, like a program with a URL.
type clerk struct {
	Label, URL, History string
	Names               []string
	Seed                uint64
	Work                time.Duration // maximum duration under a lock
	Speaks              string        // "" for a program with dsync, else the key of an incumbent
}

// locks is the clerk's source of locks.
type locks interface {
	Lock(ctx context.Context, name string) (taken, error)
	Close(ctx context.Context) error
}

// taken is a lock that a clerk holds.
type taken interface {
	history.Claim
	Done() <-chan struct{}
	Unlock(ctx context.Context) error
}

const (
	clerkVariable = "DSYNC_TEST_CLERK"
	fleetPatience = time.Minute
)

// clerkMain runs a clerk until its standard input ends.
func clerkMain() {
	var c clerk
	err := json.Unmarshal([]byte(os.Getenv(clerkVariable)), &c)
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { // ends at the end of the standard input
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		err = c.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, c.Label+":", err)
		os.Exit(1)
	}
}

func (c *clerk) run(ctx context.Context) error {
	h, err := history.Create(c.History, c.Label)
	if err != nil {
		return err
	}
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	workers := uint64(2)
	if c.Speaks != "" {
		workers = 1 // the mutexes of one etcd session do not exclude each other
	}
	var work sync.WaitGroup
	for i := range workers {
		random := rand.New(rand.NewPCG(c.Seed, i))
		work.Go(func() {
			for ctx.Err() == nil {
				c.lock(ctx, l, h, random)
			}
		})
	}
	work.Wait()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), fleetPatience)
	defer cancel()
	_ = l.Close(bound) // a backend may be down at that moment: then the remaining locks expire
	return h.Close()
}

// open opens the source of locks repeatedly until it succeeds, like a
// supervised clerk that is restarted.
func (c *clerk) open(ctx context.Context) (locks, error) {
	bound, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	for {
		l, err := c.openOnce(bound)
		if err == nil || bound.Err() != nil {
			return l, err
		}
		pause(bound, 200*time.Millisecond)
	}
}

func (c *clerk) openOnce(ctx context.Context) (locks, error) {
	if c.Speaks != "" {
		return incumbents[c.Speaks](ctx, c.URL)
	}
	client, err := dsync.Open(ctx, c.URL, &dsync.Options{TTL: runbookTTL})
	return leases{client}, err
}

// leases are the locks of dsync.
type leases struct{ *dsync.Client }

func (l leases) Lock(ctx context.Context, name string) (taken, error) {
	return l.Client.Lock(ctx, name)
}

func (c *clerk) lock(ctx context.Context, locks locks, h *history.History, random *rand.Rand) {
	bound, cancel := context.WithTimeout(ctx, runbookTTL)
	defer cancel()
	a := history.Attempt{Client: c.Label, Name: c.Names[random.IntN(len(c.Names))]}
	op := h.Begin(a)
	l, err := locks.Lock(bound, a.Name)
	if op.Returned(l, err); err != nil {
		pause(ctx, 20*time.Millisecond)
		return
	}
	select {
	case <-l.Done():
		op.Lost()
	case <-time.After(rand.N(c.Work)):
	}
	_ = op.Check()
	op.Released(l.Unlock(op.Releasing(context.Background())))
	pause(ctx, time.Duration(random.IntN(10))*time.Millisecond)
}
