package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync"
)

// incumbents are programs that use only the old backend and do not know dsync.
// Each is opened by a URL of dsync.
var incumbents = map[string]func(ctx context.Context, raw string) (locks, error){
	"SET NX PX": openTexts,
	"Mutex":     openMutexes,
}

// foreign is a lock of an incumbent, without a token.
type foreign struct {
	until  time.Time // the lock certainly exists until then
	done   <-chan struct{}
	unlock func(ctx context.Context) error
}

func (f *foreign) Token() uint64                    { return 0 }
func (f *foreign) Deadline() time.Time              { return f.until }
func (f *foreign) Done() <-chan struct{}            { return f.done }
func (f *foreign) Unlock(ctx context.Context) error { return f.unlock(ctx) }

func (f *foreign) Err() error {
	if time.Now().After(f.until) {
		return dsync.ErrNotHeld
	}
	return nil
}

// unknown turns err into an error of a class that histories record as unknown:
// the request may have been carried out.
func unknown(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %v", dsync.ErrUnknown, err)
	}
	return err
}

// texts are string locks written by hand, with one of the usual scripts.
type texts struct{ rueidis.Client }

const deleteOwn = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

func openTexts(_ context.Context, raw string) (locks, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{u.Host}, Username: u.User.Username(), Password: password,
		ForceSingleClient: true, DisableCache: true})
	return texts{c}, err
}

func (t texts) Lock(ctx context.Context, name string) (taken, error) {
	for {
		value, until := rand.Text(), time.Now().Add(runbookTTL)
		set := t.B().Set().Key(name).Value(value).Nx().PxMilliseconds(runbookTTL.Milliseconds()).Build()
		switch err := t.Do(ctx, set).Error(); {
		case err == nil:
			return &foreign{until: until, unlock: func(ctx context.Context) error {
				return unknown(t.Do(ctx, t.B().Eval().Script(deleteOwn).Numkeys(1).Key(name).Arg(value).Build()).Error())
			}}, nil
		case !rueidis.IsRedisNil(err):
			return nil, unknown(err)
		}
		if pause(ctx, time.Millisecond); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func (t texts) Close(context.Context) error {
	t.Client.Close()
	return nil
}

// mutexes are the mutexes of etcd's concurrency package, all in one session.
type mutexes struct {
	client  *clientv3.Client
	prefix  string
	session *concurrency.Session
}

// mutexTTL is how long a mutex is certain to exist: two thirds of the TTL of a
// session that is kept alive, minus the delays on a busy machine.
const mutexTTL = runbookTTL / 2

func openMutexes(_ context.Context, raw string) (locks, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{u.Host}, Username: u.User.Username(), Password: password,
		DialTimeout: runbookTTL, Logger: zap.NewNop()})
	return &mutexes{client: c, prefix: strings.TrimPrefix(u.Path, "/")}, err
}

func (m *mutexes) Lock(ctx context.Context, name string) (_ taken, err error) {
	if m.session == nil {
		if m.session, err = concurrency.NewSession(m.client, concurrency.WithTTL(int(runbookTTL/time.Second))); err != nil {
			return nil, unknown(err)
		}
	}
	mutex := concurrency.NewMutex(m.session, m.prefix+name)
	if err := mutex.Lock(ctx); err != nil {
		m.session.Orphan() // leftovers end when the lease ends
		m.session = nil
		return nil, unknown(err)
	}
	return &foreign{until: time.Now().Add(mutexTTL), done: m.session.Done(), unlock: func(ctx context.Context) error {
		return unknown(mutex.Unlock(ctx))
	}}, nil
}

func (m *mutexes) Close(context.Context) error { return m.client.Close() }
