// Package natslock locks names in a key-value bucket of NATS JetStream, with
// package driver/cas.
//
// Clients observe expiry themselves, because NATS responses do not contain the
// server's time. Tokens are the sequence numbers of the stream. A deleted key
// leaves a marker in the stream, as in every bucket.
package natslock

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

// New returns a driver for a bucket, and creates the bucket if it does not
// exist. Unlike other buckets, this bucket is read only from the leader,
// because a replica may lag behind.
func New(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, fenced bool) (*cas.Driver, error) {
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, Replicas: replicas,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DenyDelete: true, AllowRollup: true,
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // the stream exists with other options
		stream, err = js.Stream(ctx, "KV_"+bucket)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	if c := stream.CachedInfo().Config; c.AllowDirect && c.Replicas > 1 {
		return nil, fmt.Errorf("bucket %s: reads by replicas may lag behind (allow_direct)", bucket)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return cas.New(&store{kv}, cas.Options{Name: "natslock", Rising: true, NoTokens: !fenced}), nil
}

// store is a cas.Store.
type store struct{ kv jetstream.KeyValue }

// key encodes a name, because keys permit few characters.
func key(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

func entry(e jetstream.KeyValueEntry) cas.Entry {
	return cas.Entry{Value: e.Value(), Version: strconv.FormatUint(e.Revision(), 10)}
}

func (s *store) Read(ctx context.Context, name string) (cas.Entry, error) {
	e, err := s.kv.Get(ctx, key(name))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return cas.Entry{}, nil
	} else if err != nil {
		return cas.Entry{}, sorted(err)
	}
	return entry(e), nil
}

func (s *store) Write(ctx context.Context, name string, value []byte, version string) (next string, err error) {
	put := func() (uint64, error) { return s.kv.Update(ctx, key(name), value, revision(version)) }
	if version == "" {
		put = func() (uint64, error) { return s.kv.Create(ctx, key(name), value) }
	}
	n, err := put()
	return strconv.FormatUint(n, 10), sorted(err)
}

func (s *store) Delete(ctx context.Context, name, version string) error {
	return sorted(s.kv.Delete(ctx, key(name), jetstream.LastRevision(revision(version))))
}

func revision(version string) uint64 {
	n, _ := strconv.ParseUint(version, 10, 64)
	return n
}

// sorted converts an error to an error that package cas expects.
func sorted(err error) error {
	switch {
	case errors.Is(err, jetstream.ErrKeyExists):
		// the code that NATS returns for every mismatched revision
		return cas.ErrChanged
	case errors.Is(err, nats.ErrAuthorization):
		return fmt.Errorf("%w: %w", driver.ErrCredentials, err)
	case errors.Is(err, nats.ErrPermissionViolation):
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return err
}

// List implements cas.Lister. The keys do not reveal the names.
func (s *store) List(ctx context.Context, _ string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		w, err := s.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
		if err != nil {
			yield(cas.Entry{}, sorted(err))
			return
		}
		defer w.Stop()
		for {
			select {
			case e := <-w.Updates():
				if e == nil || !yield(entry(e), nil) { // nil: the list is complete
					return
				}
			case <-ctx.Done():
				yield(cas.Entry{}, ctx.Err())
				return
			}
		}
	}
}

// Notify implements cas.Notifier. The watch continues after an outage.
func (s *store) Notify(name string, changed func()) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	go s.follow(ctx, name, func() { // follows until stop is called
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			changed()
		}
	})
	return func() {
		mu.Lock() // so that no call is in progress when stop returns
		defer mu.Unlock()
		cancel()
	}, nil
}

func (s *store) follow(ctx context.Context, name string, changed func()) {
	for ctx.Err() == nil {
		updates, err := s.kv.Watch(ctx, key(name), jetstream.MetaOnly())
		if err != nil { // NATS is out of reach
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			continue
		}
		for open := true; open && ctx.Err() == nil; {
			changed()
			select {
			case _, open = <-updates.Updates():
			case <-ctx.Done():
			}
		}
		_ = updates.Stop()
	}
}
