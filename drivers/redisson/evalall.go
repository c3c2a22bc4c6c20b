package redisson

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// call is one run of a script.
type call struct {
	script     *script
	keys, args []string
}

// evalAll runs scripts many times in one request, each time with its own outcome. Where replicas have to confirm, evalAll returns how
// many did.
func (d *Driver) evalAll(ctx context.Context, client rueidis.Client, calls []call, replicas int) ([]rueidis.RedisResult, int) {
	b := client.B()
	cmds := make([]rueidis.Completed, 0, len(calls)+1)
	for _, c := range calls {
		cmds = append(cmds, b.Evalsha().Sha1(c.script.sha).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build())
	}
	begun := time.Now()
	results, acks := d.sendAll(ctx, client, cmds, replicas, d.options.WaitLimit)
	var unknown []int
	var again []rueidis.Completed
	demoted := false
	for i, result := range results {
		demoted = demoted || isDemoted(result.Error()) || calls[i].script == renewScript && notRenewed(result)
		if isNoScript(result.Error()) {
			c := calls[i]
			unknown = append(unknown, i)
			again = append(again, b.Eval().Script(c.script.text).Numkeys(int64(len(c.keys))).Key(c.keys...).Arg(c.args...).Build())
		}
	}
	if demoted {
		d.leaveServer()
	}
	if len(unknown) == 0 {
		return results, acks
	}
	// Where replicas are missing, the limit has passed: WAIT waits for them
	// also behind a script that was not known.
	rest, acks := d.sendAll(ctx, client, again, replicas, d.options.WaitLimit-time.Since(begun))
	for i, result := range rest {
		results[unknown[i]] = result
	}
	return results, acks
}

// notRenewed reports whether the renew script says that the server is a replica.
func notRenewed(result rueidis.RedisResult) bool {
	answers, err := result.ToString()
	return err == nil && strings.IndexByte(answers, replicaAnswer) >= 0
}

// sendAll sends the requests, and behind them WAIT with a limit, which counts
// the writes of its own connection: the library uses one connection for all.
func (d *Driver) sendAll(ctx context.Context, client rueidis.Client, cmds []rueidis.Completed, replicas int, limit time.Duration) ([]rueidis.RedisResult, int) {
	if replicas == 0 {
		return d.doMulti(ctx, client, cmds), 0
	}
	cmds = append(cmds, client.B().Wait().Numreplicas(int64(replicas)).Timeout(max(limit.Milliseconds(), 1)).Build())
	results := d.doMulti(ctx, client, cmds)
	last := len(cmds) - 1
	acks, err := results[last].ToInt64()
	if err != nil {
		acks = 0
	}
	return results[:last], int(acks)
}
