package redisson

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

//go:embed lua
var luaFiles embed.FS

func lua(name string) string { return redisdriver.Lua(luaFiles, "lua/"+name) }

var (
	acquireScript = redisdriver.NewScript(lua("take") + lua("acquire") + "return acquire(KEYS[1], ARGV[1], ARGV[2], KEYS[2], ARGV[3], ARGV[4], ARGV[5], KEYS[3])\n")
	turnScript    = redisdriver.NewScript(lua("take") + lua("acquire") + lua("turn") +
		"return acquireInTurn(ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[1], ARGV[5], ARGV[6], KEYS[2], ARGV[7], ARGV[8], ARGV[9], KEYS[3])\n")
	releaseScript = redisdriver.NewScript(lua("release") + "return release(KEYS[1], unpack(ARGV))\n")
	batchScript   = redisdriver.NewScript(lua("take") + lua("acquire") + lua("turn") + lua("release") + lua("batch"))
	renewScript   = redisdriver.NewScript(lua("renew"))
	forceScript   = redisdriver.NewScript(lua("basics") + lua("fair") + lua("rwrelease") + lua("force"))
	inspectScript = redisdriver.NewScript(lua("basics") + lua("rwreaders") + lua("inspect"))
	sealScript    = redisdriver.NewScript(lua("seal"))
	markScript    = redisdriver.NewScript(lua("take") + lua("raise") + lua("mark"))
	loosenScript  = redisdriver.NewScript(lua("take") + lua("raise") + lua("loosen"))
	unsealScript  = redisdriver.NewScript(lua("unseal"))
	unmarkScript  = redisdriver.NewScript(lua("unmark"))
	latchScript   = redisdriver.NewScript(lua("latch"))

	// Each run of a script defines the functions of its text again, so a script
	// includes only the functions that it needs.
	readScript  = redisdriver.NewScript(lua("take") + lua("acquire") + lua("rw") + "return acquireRead(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	writeScript = redisdriver.NewScript(lua("take") + lua("acquire") + lua("basics") + lua("rw") + lua("rwreaders") + lua("rwwrite") +
		"return acquireWrite(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))\n")

	releaseRead            = lua("rwreaders") + lua("rwrelease") + lua("rwreleaseread") + "return releaseRead(KEYS[1], KEYS[2], unpack(ARGV))\n"
	releaseWrite           = lua("rwrelease") + lua("rwreleasewrite") + "return releaseWrite(KEYS[1], KEYS[2], unpack(ARGV))\n"
	readReleaseScript      = redisdriver.NewScript(lua("basics") + releaseRead)
	writeReleaseScript     = redisdriver.NewScript(lua("basics") + releaseWrite)
	fairReadReleaseScript  = redisdriver.NewScript(lua("basics") + lua("fair") + releaseRead)
	fairWriteReleaseScript = redisdriver.NewScript(lua("basics") + lua("fair") + releaseWrite)

	fairAcquireScript = redisdriver.NewScript(lua("take") + lua("basics") + lua("fair") + lua("fairgrant") + lua("fairacquire") +
		"return acquireFair(KEYS[1], KEYS[2], KEYS[3], KEYS[4], unpack(ARGV))\n")
	fairReleaseScript = redisdriver.NewScript(lua("basics") + lua("fair") + lua("fairrelease") + "return releaseFair(KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))\n")

	permitAcquireScript = redisdriver.NewScript(lua("permits") + lua("permitacquire"))
	permitReleaseScript = redisdriver.NewScript(lua("permits") + lua("permitrelease"))
	permitRenewScript   = redisdriver.NewScript(lua("permits") + lua("permitrenew"))
	permitLimitScript   = redisdriver.NewScript(lua("permits") + lua("permitlimit"))
	permitInspectScript = redisdriver.NewScript(lua("permits") + lua("permitinspect"))
	permitForceScript   = redisdriver.NewScript(lua("permits") + lua("permitforce"))
)

// eval runs a script by its digest, or by its text if the server does not know
// the digest.
func (d *Driver) eval(ctx context.Context, sc *redisdriver.Script, keys, args []string) rueidis.RedisResult {
	c := sc.Call(keys, args...)
	result := d.client.Do(ctx, c.Command(d.client.B()))
	if redisdial.IsNoScript(result.Error()) {
		result = d.client.Do(ctx, c.CommandByText(d.client.B()))
	}
	d.checkRole(result)
	return result
}

// checkRole disconnects from a server that refused a request because it is a
// replica.
func (d *Driver) checkRole(results ...rueidis.RedisResult) {
	if slices.ContainsFunc(results, func(r rueidis.RedisResult) bool { return redisdial.IsDemoted(r.Error()) }) {
		d.leaveServer()
	}
}

// leaveServer closes the connections to a server that has become a replica, so
// that the client connects to the address again, or queries the sentinels.
func (d *Driver) leaveServer() {
	if d.dialer != nil {
		d.dialer.Break()
	}
}

// do sends one request, as doMulti does.
func (d *Driver) do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return d.doMulti(ctx, d.client, []rueidis.Completed{cmd})[0]
}

// query runs a script whose effect no replica needs to confirm.
func (d *Driver) query(ctx context.Context, c redisdriver.Call) rueidis.RedisResult {
	results, _ := d.evalAll(ctx, d.client, []redisdriver.Call{c}, 0)
	return results[0]
}

// doMulti sends several requests together. It returns when they are answered or
// fail, or when ctx ends. The library does not always respect ctx, for example
// while it connects.
func (d *Driver) doMulti(ctx context.Context, client rueidis.CoreClient, cmds []rueidis.Completed) []rueidis.RedisResult {
	answers := make(chan []rueidis.RedisResult, 1)
	if !d.life.Go(func() { answers <- client.DoMulti(ctx, cmds...) }) { // ends soon after ctx
		return failAll(len(cmds), redisdriver.NotSent{Why: driver.ErrClosed})
	}
	select {
	case results := <-answers:
		d.checkRole(results...)
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

// evalAll sends many calls of scripts in one request and returns the outcome of
// each call. If replicas must confirm, evalAll also returns the number of
// replicas that did.
func (d *Driver) evalAll(ctx context.Context, client rueidis.Client, calls []redisdriver.Call, replicas int) ([]rueidis.RedisResult, int) {
	cmds := make([]rueidis.Completed, 0, len(calls)+1)
	for _, c := range calls {
		cmds = append(cmds, c.Command(client.B()))
	}
	begun := time.Now()
	results, acks := d.sendAll(ctx, client, cmds, replicas, d.options.WaitLimit)
	var unknown []int
	var again []rueidis.Completed
	for i, result := range results {
		if redisdial.IsNoScript(result.Error()) {
			unknown, again = append(unknown, i), append(again, calls[i].CommandByText(client.B()))
		}
	}
	if len(unknown) == 0 {
		return results, acks
	}
	// If confirmations are missing, the limit has passed, because WAIT waits
	// for replicas even after a script that the server did not know.
	rest, acks := d.sendAll(ctx, client, again, replicas, d.options.WaitLimit-time.Since(begun))
	for i, result := range rest {
		results[unknown[i]] = result
	}
	return results, acks
}

// sendAll sends the requests, followed by WAIT with a limit. WAIT counts the
// writes of its own connection, which is enough because the library uses one
// connection for all requests.
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

// evalReplicated runs a script that replicas must confirm, and returns the
// number of replicas that did.
func (d *Driver) evalReplicated(ctx context.Context, c redisdriver.Call) (rueidis.RedisResult, int) {
	node, err := d.nodeOf(ctx, c.Keys[0])
	if err != nil {
		return rueidis.NewErrorResult(err), 0
	}
	results, acks := d.evalAll(ctx, node, []redisdriver.Call{c}, d.options.WaitReplicas)
	if err := results[0].Error(); err != nil && d.cluster {
		d.nodes.Expire()
	}
	return results[0], acks
}

// nodeOf returns the client for scripts on a key. If replicas of a cluster must
// confirm, it returns the node's client, because the client as a whole sends
// WAIT to any node.
func (d *Driver) nodeOf(ctx context.Context, key string) (rueidis.Client, error) {
	if !d.cluster || d.options.WaitReplicas == 0 {
		return d.client, nil
	}
	return d.nodes.client(ctx, slotOf(key))
}

func (d *Driver) undo(ctx context.Context, l *lease, acks int) error {
	err := d.notReplicated(acks)
	if releaseErr := l.Release(ctx); releaseErr != nil && !errors.Is(releaseErr, driver.ErrNotHeld) {
		return fmt.Errorf("%w; %w", err, releaseErr)
	}
	return err
}

// ErrNotReplicated reports that too few replicas confirmed a grant or a renewal
// in time (Options.WaitReplicas). The grant was undone. The error matches
// driver.ErrUnavailable too.
var ErrNotReplicated = fmt.Errorf("not enough replicas: %w", driver.ErrUnavailable)

func (d *Driver) notReplicated(acks int) error {
	return fmt.Errorf("%w: %d of %d confirmed within %v", ErrNotReplicated, acks, d.options.WaitReplicas, d.options.WaitLimit)
}
