package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// The workloads of permits. Only rows take part that name them, on backends that have permits.

// benchLimit is how many permits a name has.
const benchLimit = 32

var (
	permitFree = &Workload{
		Number: 12, Named: true, Name: "12", Title: "a permit that is free, one goroutine", File: "permit.svg", Plot: "p50 µs",
		Metrics: free.Metrics, Measure: measureFree,
	}
	permitsOfMany = &Workload{
		Number: 13, Named: true, Name: "13", Title: fmt.Sprintf("one of %d permits of a name, 64 goroutines in one process", benchLimit),
		File: "permits64.svg", Plot: "ops/s", Metrics: distinct64.Metrics, Measure: measurePermits,
	}
)

func measurePermits(b *bed, r *Row, round int) (Sample, error) {
	name := r.key("permits", round)
	names := make([]string, 64)
	for i := range names {
		names[i] = name
	}
	return measureNames(b, r, names)
}

// The least that permits take which come back, and are a number and a sorted set of ends, as Redisson's are, whose waiters are in a queue at the
// server: who gives one back names the next, and tells its client. What is over by the server's clock is free again, as the floor of a lock expires.
var (
	permitAcquire = fmt.Sprintf(`local over = redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, redis.call('TIME')[1] * 1000)
local free = (redis.call('GET', KEYS[1]) or %d) + over
if free < 1 then
  redis.call('RPUSH', KEYS[3], ARGV[1])
  return 0
end
redis.call('SET', KEYS[1], free - 1)
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return 1`, benchLimit)
	permitRelease = `if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
local next = redis.call('LPOP', KEYS[3])
if not next then return redis.call('INCR', KEYS[1]) > 0 and 1 end
redis.call('ZADD', KEYS[2], ARGV[2], next)
redis.call('PUBLISH', string.sub(next, 1, 8), next)
return 1`
)

// redisPermits is not a product, as redisQueue is not.
type redisPermits struct{ *redisQueue }

func openRedisPermits(ctx context.Context, addrs []string) (Locker, error) {
	l, err := newRedisQueue(ctx, addrs, permitAcquire, permitRelease)
	if err != nil {
		return nil, err
	}
	return redisPermits{l}, nil
}

// end is that of a permit, by the clock of the client.
func (l redisPermits) end() string { return strconv.FormatInt(time.Now().Add(heldTTL).UnixMilli(), 10) }

func (l redisPermits) Lock(ctx context.Context, name string) (Held, error) {
	id := l.channel + newID()
	ask := l.client.B().Evalsha().Sha1(l.sha[0]).Numkeys(3).Key(name, name+":ends", name+":queue").Arg(id, l.end()).Build()
	if err := l.take(ctx, id, ask); err != nil {
		return nil, err
	}
	return &redisPermit{l, name, id}, nil
}

type redisPermit struct {
	l        redisPermits
	name, id string
}

func (h *redisPermit) Release(ctx context.Context) error {
	b := h.l.client.B()
	give := b.Evalsha().Sha1(h.l.sha[1]).Numkeys(3).Key(h.name, h.name+":ends", h.name+":queue").Arg(h.id, h.l.end()).Build()
	n, err := h.l.client.Do(ctx, give).ToInt64()
	return released(n, err)
}
