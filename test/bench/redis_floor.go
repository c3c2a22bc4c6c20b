package bench

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

// The least that a lock takes which is a hash, as Redisson's is: a script to take it, and one to give it back that tells waiters.
const (
	hashAcquire = `if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`
	hashRelease = `if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('PUBLISH', KEYS[2], '0')
return 1`
	hashRenewAll = `for i, key in ipairs(KEYS) do
  if redis.call('HEXISTS', key, ARGV[i + 1]) == 0 then return 0 end
  redis.call('PEXPIRE', key, ARGV[1])
end
return 1`
)

// The least that a lock takes whose waiters are in a queue at the server: who gives it back names the next, and tells its client.
// The first eight characters of an identity are the client's channel.
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

// redisScripts is a client with scripts that the server knows.
type redisScripts struct {
	client rueidis.Client
	sha    []string
	ttl    string
}

func newRedisScripts(ctx context.Context, addr string, texts ...string) (*redisScripts, error) {
	client, err := newRueidis(addr)
	if err != nil {
		return nil, err
	}
	s := &redisScripts{client: client, ttl: strconv.FormatInt(heldTTL.Milliseconds(), 10)}
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

func (s *redisScripts) Close() error {
	s.client.Close()
	return nil
}

// redisHash waits for nobody: it is for locks that are free.
type redisHash struct{ *redisScripts }

func openRedisHash(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newRedisScripts(ctx, addrs[0], hashAcquire, hashRelease, hashRenewAll)
	if err != nil {
		return nil, err
	}
	return redisHash{s}, nil
}

func (l redisHash) Lock(ctx context.Context, name string) (Held, error) {
	h := &redisHashHeld{l, name, newID()}
	n, err := l.client.Do(ctx, l.client.B().Evalsha().Sha1(l.sha[0]).Numkeys(1).Key(name).Arg(h.id, l.ttl).Build()).ToInt64()
	if err := released(n, err); err != nil {
		return nil, err
	}
	return h, nil
}

type redisHashHeld struct {
	l        redisHash
	name, id string
}

func (h *redisHashHeld) Release(ctx context.Context) error {
	b := h.l.client.B()
	n, err := h.l.client.Do(ctx, b.Evalsha().Sha1(h.l.sha[1]).Numkeys(2).Key(h.name, "hashes").Arg(h.id).Build()).ToInt64()
	return released(n, err)
}

func (l redisHash) RenewAll(ctx context.Context, held []Held) error {
	const together = 500
	for len(held) > 0 {
		some := held[:min(together, len(held))]
		held = held[len(some):]
		keys, args := make([]string, 0, len(some)), make([]string, 0, len(some)+1)
		args = append(args, l.ttl)
		for _, h := range some {
			keys, args = append(keys, h.(*redisHashHeld).name), append(args, h.(*redisHashHeld).id)
		}
		b := l.client.B()
		n, err := l.client.Do(ctx, b.Evalsha().Sha1(l.sha[2]).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToInt64()
		if err := released(n, err); err != nil {
			return err
		}
	}
	return nil
}

// redisQueue is not a product: a waiter that dies stalls the queue.
type redisQueue struct {
	*redisScripts
	channel string
	boxes   mailboxes
	cancel  context.CancelFunc
	ended   chan error // of the subscription
}

func openRedisQueue(ctx context.Context, addrs []string) (Locker, error) {
	l, err := newRedisQueue(ctx, addrs, queueAcquire, queueRelease)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func newRedisQueue(ctx context.Context, addrs []string, acquire, release string) (*redisQueue, error) {
	s, err := newRedisScripts(ctx, addrs[0], acquire, release)
	if err != nil {
		return nil, err
	}
	l := &redisQueue{redisScripts: s, channel: newID()[:8], ended: make(chan error, 1)}
	l.boxes.by = make(map[string]chan struct{})
	life, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	subscribed := make(chan struct{}, 1)
	life = rueidis.WithOnSubscriptionHook(life, func(rueidis.PubSubSubscription) {
		select {
		case subscribed <- struct{}{}:
		default:
		}
	})
	go func() { // ends with life
		l.ended <- s.client.Receive(life, s.client.B().Subscribe().Channel(l.channel).Build(), func(m rueidis.PubSubMessage) { l.boxes.deliver(m.Message) })
	}()
	select {
	case <-subscribed:
		return l, nil
	case err = <-l.ended:
		l.ended <- err
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = l.Close()
	return nil, err
}

func (l *redisQueue) Lock(ctx context.Context, name string) (Held, error) {
	id := l.channel + newID()
	ask := l.client.B().Evalsha().Sha1(l.sha[0]).Numkeys(2).Key(name, name+":queue").Arg(id, l.ttl).Build()
	if err := l.take(ctx, id, ask); err != nil {
		return nil, err
	}
	return &redisQueueHeld{l, name}, nil
}

// take asks for a hold, and waits for the message of who gives it back.
func (l *redisQueue) take(ctx context.Context, id string, ask rueidis.Completed) error {
	box := l.boxes.add(id)
	n, err := l.client.Do(ctx, ask).ToInt64()
	if err != nil || n == 1 {
		l.boxes.remove(id)
		return err
	}
	select {
	case <-box:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *redisQueue) Close() error {
	l.cancel()
	<-l.ended
	return l.redisScripts.Close()
}

type redisQueueHeld struct {
	l    *redisQueue
	name string
}

func (h *redisQueueHeld) Renew(ctx context.Context) error {
	n, err := h.l.client.Do(ctx, h.l.client.B().Pexpire().Key(h.name).Milliseconds(heldTTL.Milliseconds()).Build()).ToInt64()
	return released(n, err)
}

func (h *redisQueueHeld) Release(ctx context.Context) error {
	b := h.l.client.B()
	n, err := h.l.client.Do(ctx, b.Evalsha().Sha1(h.l.sha[1]).Numkeys(2).Key(h.name, h.name+":queue").Arg(h.l.ttl).Build()).ToInt64()
	return released(n, err)
}
