// Package consullock locks names in Consul's key-value store, with package
// driver/cas.
//
// Clients observe expiry themselves, because Consul's responses do not contain
// the server's time. Tokens are Consul's indexes, which keep rising when a key
// is deleted.
package consullock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

// New returns a driver whose keys begin with prefix, such as "locks/". The
// token of the client needs the right to write these keys.
func New(client *api.Client, prefix string, fenced bool) *cas.Driver {
	s := &store{client.KV(), prefix, make(chan struct{}, maxWatches)}
	return cas.New(s, cas.Options{Name: "consullock", Rising: true, NoTokens: !fenced})
}

const (
	// maxWatches bounds the connections of watches. By default, an agent
	// accepts 200 connections from an address.
	maxWatches = 64

	// watchFor is how long a request waits for a change.
	watchFor = 10 * time.Second
)

// store is a cas.Store.
type store struct {
	kv      *api.KV
	prefix  string
	watches chan struct{} // an element for each watch
}

// key encodes a name, because a path must contain neither "//" nor "..".
func (s *store) key(name string) string {
	return s.prefix + strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
}

func entry(p *api.KVPair) cas.Entry {
	return cas.Entry{Value: p.Value, Version: strconv.FormatUint(p.ModifyIndex, 10)}
}

// current returns the options of a read that sees all earlier writes.
func current(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func (s *store) Read(ctx context.Context, name string) (cas.Entry, error) {
	p, _, err := s.kv.Get(s.key(name), current(ctx))
	if err != nil || p == nil {
		return cas.Entry{}, sorted(err)
	}
	return entry(p), nil
}

func (s *store) Write(ctx context.Context, name string, value []byte, version string) (next string, err error) {
	written, err := s.apply(ctx, &api.KVTxnOp{Verb: api.KVCAS, Key: s.key(name), Value: value, Index: index(version)})
	if err != nil {
		return "", err
	}
	return entry(written[0]).Version, nil
}

// Delete checks the index in a separate operation, because KVDeleteCAS succeeds
// if there is no key.
func (s *store) Delete(ctx context.Context, name, version string) error {
	key := s.key(name)
	_, err := s.apply(ctx, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: index(version)}, &api.KVTxnOp{Verb: api.KVDelete, Key: key})
	return err
}

func index(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}

// apply carries out all the operations or none. Only the response to a
// transaction contains the new index.
func (s *store) apply(ctx context.Context, ops ...*api.KVTxnOp) ([]*api.KVPair, error) {
	ok, r, _, err := s.kv.Txn(ops, current(ctx))
	if err == nil && !ok {
		err = errors.New("the transaction was refused")
		for _, e := range r.Errors {
			err = errors.New(e.What)
		}
	}
	if err != nil {
		return nil, sorted(err)
	}
	return r.Results, nil
}

// sorted converts an error to the form that package cas expects. Consul's
// errors differ only in their texts. A key that is part of a text has no
// spaces.
func sorted(err error) error {
	var dial *net.OpError
	is := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(err.Error(), t) })
	}
	switch {
	case err == nil:
		return nil
	case is("index is stale", "current modify index", "doesn't exist"):
		return cas.ErrChanged
	case is("ACL not found"):
		return fmt.Errorf("%w: %w", driver.ErrCredentials, err)
	case is("Permission denied"):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case errors.As(err, &dial) && dial.Op == "dial", is("No cluster leader", "rate limit exceeded", "too many concurrent connections", "too large"):
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return err
}

// List implements cas.Lister.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		pairs, _, err := s.kv.List(s.key(prefix), current(ctx))
		for _, p := range pairs {
			if !yield(entry(p), nil) {
				return
			}
		}
		if err != nil {
			yield(cas.Entry{}, sorted(err))
		}
	}
}

// Notify implements cas.Notifier.
func (s *store) Notify(name string, changed func()) (stop func(), err error) {
	select {
	case s.watches <- struct{}{}:
	default:
		return nil, fmt.Errorf("this client watches %d other names: %w", maxWatches, errors.ErrUnsupported)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // runs until stop is called
		defer close(done)
		s.follow(ctx, s.key(name), changed)
		<-s.watches
	}()
	return func() {
		cancel()
		<-done
	}, nil
}

// follow calls changed when the index of a key changes, and when Consul can be
// reached again.
func (s *store) follow(ctx context.Context, key string, changed func()) {
	var seen uint64
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, 2*watchFor)
		_, meta, err := s.kv.Get(key, (&api.QueryOptions{WaitIndex: seen, WaitTime: watchFor}).WithContext(short))
		cancel()
		switch {
		case err != nil:
			seen = 0
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		case meta.LastIndex != seen && ctx.Err() == nil:
			changed()
			seen = meta.LastIndex
		}
	}
}
