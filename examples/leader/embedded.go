//go:build unix

package main

import (
	"context"
	"fmt"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// embedded is a team of nodes in this process, each with its own client. A node
// that cannot reach the others appears dead to them.
type embedded struct {
	job
	server *memory.Server
}

func (t *embedded) String() string {
	return fmt.Sprintf("three clients in one process, TTL %v", t.TTL)
}

func (t *embedded) ways() [3]string {
	return [3]string{"is stopped", "is cut off, and ends", "is cut off for a while"}
}

func (t *embedded) start(say func(event)) (member, error) {
	ctx, cancel := context.WithCancel(context.Background())
	m := &client{driver: t.server.NewDriver(), cancel: cancel, done: make(chan struct{})}
	open := func(_ context.Context, note string) (*dsync.Client, error) {
		return dsync.New(m.driver, &dsync.Options{TTL: t.TTL, Note: note})
	}
	go func() { // ends when ctx ends
		defer close(m.done)
		m.why = runNode(ctx, open, t.Election, t.Store, say)
	}()
	return m, nil
}

// client is one of the nodes of embedded.
type client struct {
	driver *memory.Driver
	cancel context.CancelFunc
	done   chan struct{}
	why    error // after done
}

func (c *client) terminate() { c.cancel() }

func (c *client) kill() {
	c.freeze()
	c.cancel()
}

func (c *client) freeze()                { c.driver.Cut() }
func (c *client) thaw()                  { c.driver.Heal() }
func (c *client) ended() <-chan struct{} { return c.done }
func (c *client) err() error             { return c.why }
