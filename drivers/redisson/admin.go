package redisson

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// modeField is the field of a Redisson read-write lock that is not a hold.
const modeField = "mode"

// Inspect implements driver.Inspector. Status.Owner, Note and Process are known
// for holders of this driver with tokens, and Token for the modes other than
// Read. Status.Waiters counts the clients that listen for the end of the hold,
// or the places in the queue of a fair lock. If the name is sealed, Waiters
// does not count programs that have just been notified of the seal. Inspect
// then takes up to 1.5 s longer.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	if err := d.admin(ctx, name); err != nil {
		return driver.Status{}, err
	}
	answer, err := d.query(ctx, inspectScript.Call([]string{name}, readPrefix(name))).ToArray()
	if isWrongType(err) {
		return d.inspectPermits(ctx, name)
	}
	if err != nil {
		return driver.Status{}, redisdriver.Explain(ctx, name, err)
	}
	status, err := readStatus(answer)
	if err != nil {
		return status, err
	}
	if d.options.Fair {
		queue := d.client.B().Lrange().Key(prefixName(queuePrefix, name)).Start(0).Stop(-1).Build()
		status.Queue, err = d.do(ctx, queue).AsStrSlice()
		err = redisdriver.Explain(ctx, name, err)
		if status.Waiters = len(status.Queue); err != nil || status.Mode == driver.Exclusive {
			return status, err
		}
	}
	channels := []string{channelOf(status.Mode, name, false)}
	if status.Owner == sealOwner { // each kind of lock has its own waiters
		channels = append(channels, channelOf(status.Mode, name, true))
	}
	listening, err := d.waiters(ctx, channels)
	if err == nil && listening > 0 && status.Owner == sealOwner && d.life.Sleep(ctx, leaveIn) {
		listening, err = d.waiters(ctx, channels)
	}
	if status.Waiters += listening; listening < 0 {
		status.Waiters = -1
	}
	return status, err
}

// leaveIn is how long a process may take to leave the channel after it is
// notified of a seal. A program that still listens after that is waiting for
// the sealed name.
const leaveIn = 1500 * time.Millisecond

func readStatus(answer []rueidis.RedisMessage) (driver.Status, error) {
	var status driver.Status
	if len(answer) < 3 {
		return status, redisdriver.ErrAnswer
	}
	left, err1 := answer[0].ToInt64()
	fields, err2 := answer[1].AsStrSlice()
	mode, err3 := answer[2].ToString()
	if err := errors.Join(err1, err2, err3); err != nil {
		return status, err
	}
	var holds []string
	for i := 0; i < len(fields); i += 2 {
		if fields[i] != modeField {
			holds = append(holds, fields[i])
		}
	}
	if len(holds) == 0 {
		return status, nil
	}
	status.Held, status.Hold, status.Holders = true, slices.Min(holds), 1
	value := fields[slices.Index(fields, status.Hold)+1]
	switch {
	case status.Hold == sealField:
		status.Hold, status.Owner = "", sealOwner
	case mode == "read":
		status.Mode, status.Holders = driver.Read, len(holds)
		left, _ = strconv.ParseInt(value, 10, 64)
		value = ""
		if len(answer) > 3 {
			value, _ = answer[3].ToString() // nil if the hold belongs to Java
		}
	case mode == "write":
		status.Mode = driver.Write
	}
	status.TTL = max(0, time.Duration(left)*time.Millisecond)
	status.Hold = strings.TrimSuffix(strings.TrimSuffix(status.Hold, writeSuffix), readSuffix)
	readValue(value, &status)
	return status, nil
}

// waiters returns the number of clients that listen on channels, or -1 if it is
// unknown, as with plain messages in a cluster.
func (d *Driver) waiters(ctx context.Context, channels []string) (int, error) {
	mode := d.checked.pubSub
	if d.cluster && mode != PubSubSharded {
		return -1, nil
	}
	var cmds []rueidis.Completed
	for _, channel := range channels {
		if mode != PubSubSharded {
			cmds = append(cmds, d.client.B().Arbitrary("PUBSUB", "NUMSUB", channel).Build())
		}
		if mode != PubSubPlain {
			cmds = append(cmds, d.client.B().Arbitrary("PUBSUB", "SHARDNUMSUB").Keys(channel).Build())
		}
	}
	n := 0
	for _, result := range d.doMulti(ctx, d.client, cmds) {
		answer, err := result.ToArray()
		if err != nil || len(answer) != 2 {
			return -1, nil // perhaps the command is not permitted
		}
		count, err := answer[1].AsInt64()
		if err != nil {
			return -1, nil
		}
		n += int(count)
	}
	for _, channel := range channels {
		n -= d.topics.Unused(channel)
	}
	return max(n, 0), nil
}

// ForceUnlock implements driver.ForceUnlocker.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	if err := d.admin(ctx, name); err != nil {
		return err
	}
	args := append(d.tellArgs(name, nil), prefixName(readWritePrefix, name))
	ended, err := d.query(ctx, forceScript.Call(d.fairKeys(name, []string{name}), args...)).ToInt64()
	if isWrongType(err) {
		args = d.tellPermitsArgs(name, []string{d.countText()})
		ended, err = d.query(ctx, permitForceScript.Call(permitKeys(name, nil), args...)).ToInt64()
	}
	switch {
	case err != nil:
		return redisdriver.Explain(ctx, name, err)
	case ended == 0:
		return driver.ErrNotHeld
	case ended == -1:
		return driver.ErrSealed
	}
	// a holder that misses the message learns of the removal from its next
	// renewal
	d.publish(ctx, removalChannel(name))
	return nil
}

// admin begins a call about a name that does not concern a hold of this driver.
func (d *Driver) admin(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.life.Open().Err() != nil {
		return driver.ErrClosed
	}
	if err := d.checkName(name); err != nil {
		return err
	}
	return d.checkServer(ctx)
}

// WatchRemoval implements driver.RemovalWatcher. ForceUnlock sends the message
// on a channel that has no waiters, so a listening holder does not count as a
// waiter.
func (l *lease) WatchRemoval(renew func()) (stop func()) {
	return l.driver.topics.Watch(renew, removalChannel(l.request.Name))
}

// removalChannel returns a channel that no other name can have, because a name
// has no NUL.
func removalChannel(name string) string { return prefixName(channelPrefix, name) + "\x00removed" }

// publish sends the message that announces a release on a channel. Nothing
// depends on its arrival.
func (d *Driver) publish(ctx context.Context, channel string) {
	var cmds []rueidis.Completed
	for _, word := range d.checked.words {
		cmds = append(cmds, d.client.B().Arbitrary(word).Keys(channel).Args(d.releaseMessage()).Build())
	}
	d.doMulti(ctx, d.client, cmds)
}

// publishShortened notifies waiters that would otherwise try again only after a
// shortened hold has ended.
func (d *Driver) publishShortened(ctx context.Context, r *driver.Request) {
	channel := channelOf(r.Mode, r.Name, false)
	if d.options.Fair && r.Mode == driver.Exclusive {
		first, err := d.do(ctx, d.client.B().Lindex().Key(prefixName(queuePrefix, r.Name)).Index(0).Build()).ToString()
		if err != nil {
			return // there is no waiter
		}
		channel += ":" + first
	}
	d.publish(ctx, channel)
}

// Watch implements driver.Watcher. The server reports the ends of holds, and no
// grants. Fair locks cannot be watched, because only the first waiter is
// notified.
func (d *Driver) Watch(name string, changed func()) (stop func(), err error) {
	if d.options.Fair {
		return nil, fmt.Errorf("watching fair locks: %w", errors.ErrUnsupported)
	}
	return d.topics.Watch(changed, channelOf(driver.Exclusive, name, false), channelOf(driver.Write, name, false), channelOf(driver.Permit, name, false)), nil
}

// List reads few keys per request, so that other clients never wait for long.
const (
	scanKeys  = "250"
	scanPause = 2500 * time.Microsecond
)

// holdField matches the fields of a lock. A field consists of a client and one
// of the client's numbers.
var holdField = regexp.MustCompile(`^[^:]+:[0-9]+(:write|:read)?$`)

// escapeGlob turns a text into a pattern that matches nothing else.
var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// List implements driver.Lister. It scans all keys of the server, or of each
// primary of a cluster, once for locks and once for permits. It reads at most a
// hundred thousand keys a second. It omits keys for which the user has no
// permission. Names in slots that a cluster is moving during the call may be
// missed.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := d.admin(ctx, "list"); err != nil { // any name serves the purpose
			yield("", err)
			return
		}
		nodes, err := []rueidis.Client{d.client}, error(nil)
		if d.cluster {
			if nodes, err = d.nodes.primaries(ctx); err != nil {
				yield("", err)
				return
			}
		}
		for _, node := range nodes {
			if goOn, err := d.listAt(ctx, node, prefix, yield); err != nil {
				yield("", err)
				return
			} else if !goOn {
				return
			}
		}
	}
}

// listAt yields the names on one node, over one connection, because a cursor is
// valid for only one server. goOn is false when no more names are needed.
func (d *Driver) listAt(ctx context.Context, node rueidis.Client, prefix string, yield func(string, error) bool) (goOn bool, err error) {
	conn, err := d.dedicate(ctx, node)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	pattern := escapeGlob.Replace(prefix) + "*"
	goOn, err = d.scan(ctx, conn, pattern, "hash", d.locksAmong, yield)
	if err != nil || !goOn {
		return false, err
	}
	permits := func(ctx context.Context, keys []string) ([]string, error) { return d.permitsAmong(ctx, prefix, keys) }
	return d.scan(ctx, conn, "*"+pattern+":"+endsSuffix, "zset", permits, yield)
}

// scan yields the names that are held among the keys of one kind that match a
// pattern.
func (d *Driver) scan(ctx context.Context, conn rueidis.DedicatedClient, pattern, kind string,
	among func(ctx context.Context, keys []string) ([]string, error), yield func(string, error) bool) (goOn bool, err error) {
	pause := time.NewTicker(scanPause)
	defer pause.Stop()
	for cursor := "0"; ; {
		scan := conn.B().Arbitrary("SCAN", cursor, "MATCH", pattern, "COUNT", scanKeys, "TYPE", kind).Build()
		answer, err := d.doMulti(ctx, conn, []rueidis.Completed{scan})[0].AsScanEntry()
		if err != nil {
			return false, redisdriver.Explain(ctx, "", err)
		}
		names, err := among(ctx, answer.Elements)
		if err != nil {
			return false, err
		}
		for _, name := range names {
			if !yield(name, nil) {
				return false, nil
			}
		}
		if answer.Cursor == 0 {
			return true, nil
		}
		cursor = strconv.FormatUint(answer.Cursor, 10)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// dedicate returns a separate connection. The caller closes it and must not
// return it to the library (see redistopic.Conn). The library connects without
// a context.
func (d *Driver) dedicate(ctx context.Context, node rueidis.Client) (rueidis.DedicatedClient, error) {
	made := make(chan rueidis.DedicatedClient)
	if !d.life.Go(func() { // ends when the connection is made, or cannot be
		c, _ := node.Dedicate()
		select {
		case made <- c:
		case <-ctx.Done():
			c.Close()
		}
	}) {
		return nil, driver.ErrClosed
	}
	select {
	case c := <-made:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// locksAmong returns the keys that are locks.
func (d *Driver) locksAmong(ctx context.Context, keys []string) (names []string, err error) {
	var cmds []rueidis.Completed
	for _, key := range keys {
		if utf8.ValidString(key) && d.checkName(key) == nil {
			names = append(names, key)
			cmds = append(cmds, d.client.B().Arbitrary("HRANDFIELD").Keys(key).Build(), d.client.B().Arbitrary("HGET").Keys(key).Args(modeField).Build())
		}
	}
	if len(cmds) == 0 {
		return nil, nil
	}
	results := d.doMulti(ctx, d.client, cmds)
	locks := names[:0]
	for i, name := range names {
		field, err1 := results[2*i].ToString()
		mode, err2 := results[2*i+1].ToString()
		for _, err := range []error{err1, err2} {
			if err == nil || rueidis.IsRedisNil(err) {
				continue
			}
			if err = redisdriver.Explain(ctx, name, err); !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "to run") {
				return nil, err
			}
		}
		if holdField.MatchString(field) || (field == modeField || strings.HasPrefix(field, "dsync:")) && (mode == "read" || mode == "write") {
			locks = append(locks, name)
		}
	}
	return locks, nil
}

// permitsAmong returns the names that begin with prefix and have held permits.
// keys are the keys with the ends of these permits.
func (d *Driver) permitsAmong(ctx context.Context, prefix string, keys []string) (names []string, err error) {
	var calls []redisdriver.Call
	for _, key := range keys {
		name := strings.TrimSuffix(key, ":"+endsSuffix)
		if strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") {
			name = name[1 : len(name)-1]
		}
		if strings.HasPrefix(name, prefix) && utf8.ValidString(name) && d.checkName(name) == nil && endsKey(name) == key {
			names = append(names, name)
			calls = append(calls, permitInspectScript.Call(permitKeys(name, nil)))
		}
	}
	if len(calls) == 0 {
		return nil, nil
	}
	results, _ := d.evalAll(ctx, d.client, calls, 0)
	held := names[:0]
	for i, name := range names {
		status, err := readPermits(results[i])
		if err != nil && !rueidis.IsRedisNil(err) && !isWrongType(err) {
			if err = redisdriver.Explain(ctx, name, err); !errors.Is(err, fs.ErrPermission) {
				return nil, err
			}
		}
		if status.Held {
			held = append(held, name)
		}
	}
	return held, nil
}
