package redisson

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
)

// eval runs a script: by its digest, or by its text if the server does not know the digest.
func (d *Driver) eval(ctx context.Context, sc *script, keys, args []string) rueidis.RedisResult {
	b := d.client.B()
	result := d.client.Do(ctx, b.Evalsha().Sha1(sc.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	err := result.Error()
	if isNoScript(err) {
		result = d.client.Do(ctx, b.Eval().Script(sc.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
		err = result.Error()
	}
	if isDemoted(err) {
		d.leaveServer()
	}
	return result
}

// leaveServer closes the connections to a server that became a replica, so that
// the client looks up the server of the address again, or asks the sentinels.
func (d *Driver) leaveServer() {
	if d.dialer != nil {
		d.dialer.Break()
	}
}

// doMulti sends several requests at once. It returns when they are answered or fail, or when ctx ends: the library does not heed ctx
// everywhere, for example while it connects.
func (d *Driver) doMulti(ctx context.Context, client rueidis.CoreClient, cmds []rueidis.Completed) []rueidis.RedisResult {
	answers := make(chan []rueidis.RedisResult, 1)
	if !d.life.Go(func() { answers <- client.DoMulti(ctx, cmds...) }) { // ends soon after ctx
		return failAll(len(cmds), notSent{driver.ErrClosed})
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
