package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// alone is the workloads of rows for which another one of the library, or a better one, stands where many clients want one name.
var alone = []int{1, 2, 3, 4, 5, 6, 7}

var redisBackend = &Backend{
	Name:  "Redis",
	Start: func(tb testing.TB, storage testenv.Storage) *Servers { return startRedis(tb, storage, 1) },
	Rows: append(readRows("redisson", "", &Row{Name: "floor: two scripts for a reader", Kind: Floor, In: []int{8, 9}, Open: openRedisShared}), []*Row{
		{Name: "floor: two scripts on a hash", Kind: Floor, In: []int{1, 2, 6}, Open: openRedisHash},
		{Name: "floor: queue and message", Kind: Floor, In: []int{3, 4, 5, 7, 14}, Open: openRedisQueue},
		{Name: "SET NX, and again after 1 ms", Kind: Peer, In: alone, Open: openSetNX},
		{Name: "redsync (go-redis)", Kind: Peer, In: alone, Open: openRedsyncGoRedis},
		{Name: "redsync (rueidis)", Kind: Peer, Open: openRedsyncRueidis},
		{Name: "bsm/redislock", Kind: Peer, In: alone, Open: openRedislock},
		// Where its attempt times out it deletes its own key, and then waits to be told of that, which NOLOOP prevents.
		{Name: "rueidislock (majority 1, NOLOOP)", Kind: Peer, In: alone, MayFail: hangs, Open: openRueidislock(1, true)},
		{Name: "rueidislock (default)", Kind: Peer, Open: openRueidislock(0, false)},
		ours("dsync", "redisson", "", dsync.Options{}),
		replayed(1, ours("dsync", "redisson", "", dsync.Options{})),
		ours("dsync, no tokens", "redisson", "?fenced=false", dsync.Options{}, 1, 2, 4),
		ours("dsync, in order", "redisson", "?fair=true", dsync.Options{}, 2, 3, 4, 5, 14),
		replayed(8, reads("dsync, Read", "redisson", "")),
		reads("dsync, Read, no tokens", "redisson", "?fenced=false", 8),
		{Name: "floor: permits, queue and message", Kind: Floor, In: []int{12, 13}, Open: openRedisPermits},
		oursWith(dsync.Permits(1, benchLimit), "dsync, Permits", "redisson", "", 12, 13),
		replayed(12, oursWith(dsync.Permits(1, benchLimit), "dsync, Permits", "redisson", "")),
	}...),
}

func startRedis(tb testing.TB, storage testenv.Storage, n int) *Servers {
	s := &Servers{}
	servers := make([]*testenv.RedisServer, n)
	for i := range servers {
		servers[i] = storage.Redis(tb)
		s.Addrs, s.Pids = append(s.Addrs, servers[i].Addr), append(s.Pids, servers[i].Pid())
	}
	s.Counter = func(tb testing.TB) counter { return monitored(tb, s.Addrs) }
	s.Left = func(testing.TB) Sample { return redisLeft(servers) }
	s.Runs = func(_ testing.TB, during func()) int64 { return scriptRuns(servers, during) }
	return s
}

func newRueidis(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
}

// openSetNX is what one writes who wants no library.
func openSetNX(_ context.Context, addrs []string) (Locker, error) {
	client, err := newRueidis(addrs[0])
	if err != nil {
		return nil, err
	}
	return &setNX{client}, nil
}

type setNX struct{ client rueidis.Client }

var setNXRelease = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])`)

func (l *setNX) Lock(ctx context.Context, name string) (Held, error) {
	h := &setNXHeld{l, name, newID()}
	for {
		err := l.client.Do(ctx, l.client.B().Set().Key(name).Value(h.id).Nx().PxMilliseconds(heldTTL.Milliseconds()).Build()).Error()
		if err == nil {
			return h, nil
		}
		if !rueidis.IsRedisNil(err) {
			return nil, err
		}
		if err := pause(ctx, retryAfter); err != nil {
			return nil, err
		}
	}
}

func (l *setNX) Close() error {
	l.client.Close()
	return nil
}

type setNXHeld struct {
	l        *setNX
	name, id string
}

func (h *setNXHeld) Release(ctx context.Context) error {
	n, err := setNXRelease.Exec(ctx, h.l.client, []string{h.name}, []string{h.id}).AsInt64()
	return released(n, err)
}

var setNXRenew = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

func (h *setNXHeld) Renew(ctx context.Context) error {
	n, err := setNXRenew.Exec(ctx, h.l.client, []string{h.name}, []string{h.id, fmt.Sprint(heldTTL.Milliseconds())}).AsInt64()
	return released(n, err)
}

// redsyncLocker is redsync with its own settings, but for the number of tries, of which it has 32.
type redsyncLocker struct {
	rs    *redsync.Redsync
	close func() error
}

func openRedsyncGoRedis(_ context.Context, addrs []string) (Locker, error) {
	var pools []redsyncredis.Pool
	var clients []*redis.Client
	for _, addr := range addrs {
		client := newGoRedis(addr)
		clients = append(clients, client)
		pools = append(pools, redsyncgoredis.NewPool(client))
	}
	return &redsyncLocker{redsync.New(pools...), func() error {
		for _, c := range clients {
			_ = c.Close()
		}
		return nil
	}}, nil
}

func newGoRedis(addr string) *redis.Client { return redis.NewClient(&redis.Options{Addr: addr}) }

func openRedsyncRueidis(_ context.Context, addrs []string) (Locker, error) {
	var pools []redsyncredis.Pool
	var clients []rueidis.Client
	closeAll := func() error {
		for _, c := range clients {
			c.Close()
		}
		return nil
	}
	for _, addr := range addrs {
		client, err := newRueidis(addr)
		if err != nil {
			_ = closeAll()
			return nil, err
		}
		clients = append(clients, client)
		pools = append(pools, redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client)))
	}
	return &redsyncLocker{redsync.New(pools...), closeAll}, nil
}

func (l *redsyncLocker) Lock(ctx context.Context, name string) (Held, error) {
	m := l.rs.NewMutex(name, redsync.WithExpiry(heldTTL), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncHeld{m}, nil
}

func (l *redsyncLocker) Close() error { return l.close() }

type redsyncHeld struct{ m *redsync.Mutex }

func (h redsyncHeld) Release(ctx context.Context) error {
	_, err := h.m.UnlockContext(ctx)
	return err
}

func (h redsyncHeld) Renew(ctx context.Context) error {
	_, err := h.m.ExtendContext(ctx)
	return err
}

// redislockLocker asks again every 100 ms, as the example of the library does.
type redislockLocker struct {
	redis  *redis.Client
	client *redislock.Client
}

func openRedislock(_ context.Context, addrs []string) (Locker, error) {
	client := newGoRedis(addrs[0])
	return &redislockLocker{client, redislock.New(client)}, nil
}

func (l *redislockLocker) Lock(ctx context.Context, name string) (Held, error) {
	lock, err := l.client.Obtain(ctx, name, heldTTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(redislockPause)})
	if err != nil {
		return nil, err
	}
	return redislockHeld{lock}, nil
}

func (l *redislockLocker) Close() error { return l.redis.Close() }

type redislockHeld struct{ *redislock.Lock }

func (h redislockHeld) Renew(ctx context.Context) error { return h.Refresh(ctx, heldTTL, nil) }

// hangs reports whether the error is that of a wait without an end.
func hangs(_ *Workload, err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// openRueidislock opens rueidislock, for 0 and false with its own settings.
func openRueidislock(majority int32, noLoop bool) func(context.Context, []string) (Locker, error) {
	return func(_ context.Context, addrs []string) (Locker, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: addrs},
			KeyMajority:  majority, NoLoopTracking: noLoop, KeyValidity: heldTTL,
		})
		if err != nil {
			return nil, err
		}
		return rueidislockLocker{l}, nil
	}
}

type rueidislockLocker struct{ locker rueidislock.Locker }

func (l rueidislockLocker) Lock(ctx context.Context, name string) (Held, error) {
	lockCtx, cancel, err := l.locker.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return &rueidislockHeld{lockCtx, cancel}, nil
}

func (l rueidislockLocker) Close() error {
	l.locker.Close()
	return nil
}

type rueidislockHeld struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (h *rueidislockHeld) Release(context.Context) error {
	h.cancel()
	return nil
}

func (h *rueidislockHeld) Err() error { return h.ctx.Err() }

// released makes an error of the number of keys that were changed, which has to be 1.
func released(n int64, err error) error {
	if err == nil && n != 1 {
		err = errLost
	}
	return err
}

// Waiters of the floor of Redis, by the identity of their attempt.
type mailboxes struct {
	mu sync.Mutex
	by map[string]chan struct{}
}

func (m *mailboxes) add(id string) chan struct{} {
	box := make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.by[id] = box
	return box
}

func (m *mailboxes) remove(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.by, id)
}

func (m *mailboxes) deliver(id string) {
	m.mu.Lock()
	box := m.by[id]
	delete(m.by, id)
	m.mu.Unlock()
	if box != nil {
		box <- struct{}{}
	}
}
