package redisson

import (
	"context"
	"math"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

// quiet is how long after the last answer a connection is no longer trusted to be there.
const quiet = int64(time.Second)

// stamp is taken just before a request is handed to the client.
type stamp struct {
	at    int64  // on the driver's clock
	order uint64 // requests of equal order reach the server in the order of their stamps
}

// unordered is the order of requests that may be overtaken by any other.
const unordered = math.MaxUint64

// stamp returns the stamp of a request that is about to be sent. A client that the driver opened sends all over one connection, so
// that order holds as long as no other connection was made. It does not in a cluster, where a slot may move.
func (d *Driver) stamp() stamp {
	s := stamp{at: d.now(), order: unordered}
	if d.dialer != nil && !d.cluster && d.options.WaitReplicas == 0 {
		s.order = d.dialer.made.Load()
	}
	return s
}

// before reports whether s reached the server, if it ever did, before a later request that was stamped t and is answered now.
func (s stamp) before(t, now stamp) bool {
	return s.order != unordered && s.order == t.order && s.order == now.order
}

// eval runs a script: by its digest, or by its text where the server does not know it yet.
func (d *Driver) eval(ctx context.Context, s *stamp, sc *script, keys, args []string) rueidis.RedisResult {
	b := d.client.B()
	result := d.do(ctx, s, b.Evalsha().Sha1(sc.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	if isNoScript(result.Error()) {
		result = d.do(ctx, s, b.Eval().Script(sc.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	}
	return result
}

// do sends one request that carries the stamp s. It returns when ctx ends.
func (d *Driver) do(ctx context.Context, s *stamp, cmd rueidis.Completed) rueidis.RedisResult {
	ctx = d.prompt(ctx)
	if ctx.Done() != nil && (d.failing.Load() || s.at-d.answered.Load() > quiet) {
		return d.doAside(ctx, s, cmd)
	}
	result := d.client.Do(ctx, cmd)
	d.note(s.at, result.Error(), result.NonRedisError() == nil)
	return result
}

// doAside is do while there may be no connection: the client would make one on the caller's time, whatever the caller's context.
func (d *Driver) doAside(ctx context.Context, s *stamp, cmd rueidis.Completed) rueidis.RedisResult {
	answer := make(chan rueidis.RedisResult, 1)
	at := s.at
	started := d.spawn(func() { // ends soon after ctx: when the request is answered or the connection has failed
		result := d.client.Do(ctx, cmd)
		d.note(at, result.Error(), result.NonRedisError() == nil)
		answer <- result
	})
	if !started {
		return rueidis.NewErrorResult(driver.ErrClosed)
	}
	select {
	case result := <-answer:
		return result
	case <-ctx.Done():
		s.order = unordered // the goroutine may be about to send it
		return rueidis.NewErrorResult(ctx.Err())
	}
}

// doMulti sends several requests at once. It does not return before they are answered, fail, or ctx ends.
func (d *Driver) doMulti(ctx context.Context, client rueidis.Client, cmds []rueidis.Completed) []rueidis.RedisResult {
	if ctx.Done() == nil {
		return client.DoMulti(ctx, cmds...)
	}
	ctx = d.prompt(ctx)
	answers := make(chan []rueidis.RedisResult, 1)
	if !d.spawn(func() { answers <- client.DoMulti(ctx, cmds...) }) { // ends as in doAside
		return failAll(len(cmds), driver.ErrClosed)
	}
	select {
	case results := <-answers:
		return results
	case <-ctx.Done():
		return failAll(len(cmds), ctx.Err())
	}
}

func failAll(n int, err error) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, n)
	for i := range results {
		results[i] = rueidis.NewErrorResult(err)
	}
	return results
}

// note remembers whether there is a connection that answers.
func (d *Driver) note(at int64, err error, answered bool) {
	if d.failing.Load() != !answered {
		d.failing.Store(!answered)
	}
	if answered && at-d.answered.Load() > quiet/8 {
		d.answered.Store(at)
	}
	if err != nil && isReadOnly(err) && d.dialer != nil {
		d.dialer.closeAll() // the server was demoted: look up again who stands behind the address
	}
}

// prompt makes the client heed the cancellation of ctx. While a connection serves one request at a time, the library lets it run to
// ctx's deadline instead; it does not if it knows no deadline. The clients that the driver opens never serve requests in that way.
func (d *Driver) prompt(ctx context.Context) context.Context {
	if d.owned || ctx.Done() == nil {
		return ctx
	}
	return withoutDeadline{ctx}
}

type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }
