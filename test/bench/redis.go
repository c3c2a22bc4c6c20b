package bench

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

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

var redisBackend = &Backend{
	Name:  "Redis",
	Start: func(tb testing.TB, storage testenv.Storage) *Servers { return startRedis(tb, storage, 1) },
	Rows: []*Row{
		{Name: "floor: two scripts on a hash", Kind: Floor, In: []int{1, 2, 6}, Open: openRedisHash},
		{Name: "floor: queue and message", Kind: Floor, In: []int{3, 4, 5, 7, 8}, Open: openRedisQueue},
		{Name: "SET NX, again after 1 ms", Kind: Peer, In: []int{1, 2, 3, 4, 5, 6, 7}, Open: openSetNX},
		{Name: "redsync (go-redis)", Kind: Peer, In: []int{1, 2, 3, 4, 5, 6, 7}, Open: openRedsyncGoRedis},
		{Name: "redsync (rueidis)", Kind: Peer, Open: openRedsyncRueidis},
		{Name: "bsm/redislock", Kind: Peer, In: []int{1, 2, 3, 4, 5, 6, 7}, Open: openRedislock},
		// When an attempt times out, it deletes its own key and then waits
		// for the message about that, which NOLOOP suppresses. So it hangs.
		{Name: "rueidislock (majority 1, NOLOOP)", Kind: Peer, In: []int{1, 2, 3, 4, 5, 6, 7}, MayFail: true, Open: openRueidislock(1, true)},
		{Name: "rueidislock (default)", Kind: Peer, Open: openRueidislock(0, false)},
		ours("dsync", "redisson", ""),
		ours("dsync, no tokens", "redisson", "?fenced=false", 1, 2, 4),
		ours("dsync, fair=true", "redisson", "?fair=true", 2, 3, 4, 5, 8),
		ours("dsync, order=fifo", "redisson", "?fair=true&order=fifo", 3, 4, 5, 8),
		reads("redisson", "", 1, 3),
		with(ours("dsync, Permits", "redisson", "", 1), nil, dsync.Permits(1, 32)),
	},
}

func startRedis(tb testing.TB, storage testenv.Storage, n int) *Servers {
	s := &Servers{}
	for range n {
		server := storage.Redis(tb)
		s.Addrs, s.Pids = append(s.Addrs, server.Addr), append(s.Pids, server.Pid())
	}
	return s
}

// newRueidis returns a client whose connection is in the state that it has in a
// running service. On a new connection, the callers write and read themselves.
// The library permanently ends this mode at the first request with a cancelable
// context, or when two requests are on their way simultaneously.
func newRueidis(addr string) (rueidis.Client, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := client.Do(ctx, client.B().Ping().Build()).Error(); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

var ttlMillis = strconv.FormatInt(heldTTL.Milliseconds(), 10)

// redisScripts is a client with scripts that the server has loaded.
type redisScripts struct {
	client rueidis.Client
	sha    []string
}

func newRedisScripts(ctx context.Context, addr string, texts ...string) (*redisScripts, error) {
	client, err := newRueidis(addr)
	if err != nil {
		return nil, err
	}
	s := &redisScripts{client: client}
	for _, text := range texts {
		sha, err := client.Do(ctx, client.B().ScriptLoad().Script(text).Build()).ToString()
		if err != nil {
			client.Close()
			return nil, err
		}
		s.sha = append(s.sha, sha)
	}
	return s, nil
}

// run runs script i on two keys.
func (s *redisScripts) run(ctx context.Context, i int, key, key2 string, args ...string) (int64, error) {
	return s.client.Do(ctx, s.client.B().Evalsha().Sha1(s.sha[i]).Numkeys(2).Key(key, key2).Arg(args...).Build()).ToInt64()
}

// renewAll renews keys, 500 in a request.
func (s *redisScripts) renewAll(ctx context.Context, keys []string) error {
	const script = `local n = 0 for i, key in ipairs(KEYS) do n = n + redis.call('PEXPIRE', key, ARGV[1]) end return n`
	for some := range slices.Chunk(keys, 500) {
		n, err := s.client.Do(ctx, s.client.B().Eval().Script(script).Numkeys(int64(len(some))).Key(some...).Arg(ttlMillis).Build()).ToInt64()
		if err == nil && n != int64(len(some)) {
			err = errLost
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// renewal returns the function that renews a key.
func (s *redisScripts) renewal(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		return released(s.client.Do(ctx, s.client.B().Pexpire().Key(name).Milliseconds(heldTTL.Milliseconds()).Build()).ToInt64())
	}
}

func (s *redisScripts) Close() error {
	s.client.Close()
	return nil
}

// These are the minimum for a lock that is a hash, like Redisson's. One script
// acquires the lock, and the other releases it and notifies waiters.
const (
	hashAcquire = `if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`
	hashRelease = `if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('PUBLISH', KEYS[2], '0')
return 1`
)

// redisHash does not wait, because it is only used for free locks.
type redisHash struct{ *redisScripts }

func openRedisHash(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newRedisScripts(ctx, addrs[0], hashAcquire, hashRelease)
	return redisHash{s}, err
}

func (l redisHash) Lock(ctx context.Context, name string) (Held, error) {
	id := newID()
	if err := released(l.run(ctx, 0, name, "hashes", id, ttlMillis)); err != nil {
		return nil, err
	}
	return &hold{release: func(ctx context.Context) error { return released(l.run(ctx, 1, name, "hashes", id)) }}, nil
}

func (l redisHash) RenewAll(ctx context.Context, names []string) error { return l.renewAll(ctx, names) }

// These are the minimum for a lock whose waiters queue on the server. The
// release selects the next holder and notifies its client. The first eight
// characters of an identity are the channel of its client.
const (
	queueAcquire = `if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0`
	queueRelease = `local next = redis.call('LPOP', KEYS[2])
if not next then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], next, 'PX', ARGV[1])
redis.call('PUBLISH', string.sub(next, 1, 8), next)
return 1`
)

// redisQueue is not fit for production, because a waiter that dies stalls the
// queue.
type redisQueue struct {
	*redisScripts
	channel string
	cancel  context.CancelFunc
	ended   chan error // the end of the subscription

	mu      sync.Mutex
	waiters map[string]chan struct{} // by identity
}

func openRedisQueue(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newRedisScripts(ctx, addrs[0], queueAcquire, queueRelease)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.Background())
	l := &redisQueue{redisScripts: s, channel: newID()[:8], cancel: cancel, ended: make(chan error, 1), waiters: make(map[string]chan struct{})}
	subscribed := make(chan struct{})
	once := sync.OnceFunc(func() { close(subscribed) })
	life = rueidis.WithOnSubscriptionHook(life, func(rueidis.PubSubSubscription) { once() })
	go func() { // ends when life ends
		l.ended <- s.client.Receive(life, s.client.B().Subscribe().Channel(l.channel).Build(), func(m rueidis.PubSubMessage) {
			if granted := l.remove(m.Message); granted != nil {
				close(granted)
			}
		})
	}()
	select {
	case <-subscribed:
		return l, nil
	case err = <-l.ended:
		l.ended <- err
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = l.Close() // err says more
	return nil, err
}

func (l *redisQueue) remove(id string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	granted := l.waiters[id]
	delete(l.waiters, id)
	return granted
}

func (l *redisQueue) Lock(ctx context.Context, name string) (Held, error) {
	id, granted := l.channel+newID(), make(chan struct{})
	l.mu.Lock()
	l.waiters[id] = granted
	l.mu.Unlock()
	n, err := l.run(ctx, 0, name, name+":queue", id, ttlMillis)
	if err == nil && n == 0 {
		select {
		case <-granted:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.remove(id)
	if err != nil {
		return nil, err
	}
	return &hold{release: func(ctx context.Context) error { return released(l.run(ctx, 1, name, name+":queue", ttlMillis)) }}, nil
}

func (l *redisQueue) Close() error {
	l.cancel()
	<-l.ended
	return l.redisScripts.Close()
}

// setNX is a lock without a library.
type setNX struct{ *redisScripts }

const (
	valueRelease = `if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])`
	retryAfter   = time.Millisecond
)

func openSetNX(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newRedisScripts(ctx, addrs[0], valueRelease)
	return setNX{s}, err
}

func (l setNX) Lock(ctx context.Context, name string) (Held, error) {
	id := newID()
	for {
		err := l.client.Do(ctx, l.client.B().Set().Key(name).Value(id).Nx().PxMilliseconds(heldTTL.Milliseconds()).Build()).Error()
		if err == nil {
			return &hold{renew: l.renewal(name), release: func(ctx context.Context) error { return released(l.run(ctx, 0, name, name, id)) }}, nil
		}
		if !rueidis.IsRedisNil(err) {
			return nil, err
		}
		if err := pause(ctx, retryAfter); err != nil {
			return nil, err
		}
	}
}

// redsyncLocker is redsync with its default settings, except that it does
// not give up after 32 attempts.
type redsyncLocker struct {
	rs     *redsync.Redsync
	closes []func()
}

func newGoRedis(addr string) *redis.Client { return redis.NewClient(&redis.Options{Addr: addr}) }

func openRedsyncGoRedis(_ context.Context, addrs []string) (Locker, error) {
	var pools []redsyncredis.Pool
	l := &redsyncLocker{}
	for _, addr := range addrs {
		client := newGoRedis(addr)
		l.closes = append(l.closes, func() { _ = client.Close() })
		pools = append(pools, redsyncgoredis.NewPool(client))
	}
	l.rs = redsync.New(pools...)
	return l, nil
}

func openRedsyncRueidis(_ context.Context, addrs []string) (Locker, error) {
	var pools []redsyncredis.Pool
	l := &redsyncLocker{}
	for _, addr := range addrs {
		client, err := newRueidis(addr)
		if err != nil {
			_ = l.Close() // err says more
			return nil, err
		}
		l.closes = append(l.closes, client.Close)
		pools = append(pools, redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client)))
	}
	l.rs = redsync.New(pools...)
	return l, nil
}

func (l *redsyncLocker) Lock(ctx context.Context, name string) (Held, error) {
	m := l.rs.NewMutex(name, redsync.WithExpiry(heldTTL), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	ok := func(_ bool, err error) error { return err }
	return &hold{
		release: func(ctx context.Context) error { return ok(m.UnlockContext(ctx)) },
		renew:   func(ctx context.Context) error { return ok(m.ExtendContext(ctx)) },
	}, nil
}

func (l *redsyncLocker) Close() error {
	for _, closeClient := range l.closes {
		closeClient()
	}
	return nil
}

// redislockLocker tries again every 100 ms, like the library's example.
type redislockLocker struct{ redis *redis.Client }

func openRedislock(_ context.Context, addrs []string) (Locker, error) {
	return redislockLocker{newGoRedis(addrs[0])}, nil
}

func (l redislockLocker) Lock(ctx context.Context, name string) (Held, error) {
	lock, err := redislock.Obtain(ctx, l.redis, name, heldTTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
	if err != nil {
		return nil, err
	}
	return &hold{release: lock.Release, renew: func(ctx context.Context) error { return lock.Refresh(ctx, heldTTL, nil) }}, nil
}

func (l redislockLocker) Close() error { return l.redis.Close() }

// openRueidislock opens rueidislock. 0 and false are its defaults.
func openRueidislock(majority int32, noLoop bool) func(context.Context, []string) (Locker, error) {
	return func(_ context.Context, addrs []string) (Locker, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: addrs},
			KeyMajority:  majority, NoLoopTracking: noLoop, KeyValidity: heldTTL,
		})
		return rueidislockLocker{l}, err
	}
}

type rueidislockLocker struct{ locker rueidislock.Locker }

func (l rueidislockLocker) Lock(ctx context.Context, name string) (Held, error) {
	lockCtx, cancel, err := l.locker.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return &hold{err: lockCtx.Err, release: func(context.Context) error {
		cancel()
		return nil
	}}, nil
}

func (l rueidislockLocker) Close() error {
	l.locker.Close()
	return nil
}
