package redisson

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// List looks at so few keys with one request that others never wait for long, and begins the next one scanPause later at the soonest.
const (
	scanKeys  = "250"
	scanPause = 2500 * time.Microsecond
)

// holdField is what the fields of a lock look like: a client, and a number of the client's.
var holdField = regexp.MustCompile(`^[^:]+:[0-9]+(:write|:read)?$`)

// escapeGlob makes a pattern of a text that matches nothing else.
var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// List implements driver.Lister. It goes through all keys of the server, or of
// each primary of a cluster, a hundred thousand in a second at most: once for
// locks, which are hashes whose fields look like holds or seals, and once for
// permits. Keys that the user has no right to are left out. Names in slots of a
// cluster that move in the meantime may be missed.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := d.admin(ctx, "list"); err != nil { // any name will do
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

// listAt yields the names on one node. GoOn is false when nobody wants more. All pages come over one connection: a server would leave out keys
// by the cursor of another server, or of before a restart.
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

// scan yields the names that are held among the keys of one kind that match a pattern.
func (d *Driver) scan(ctx context.Context, conn rueidis.DedicatedClient, pattern, kind string,
	among func(ctx context.Context, keys []string) ([]string, error), yield func(string, error) bool) (goOn bool, err error) {
	pause := time.NewTicker(scanPause)
	defer pause.Stop()
	for cursor := "0"; ; {
		scan := conn.B().Arbitrary("SCAN", cursor, "MATCH", pattern, "COUNT", scanKeys, "TYPE", kind).Build()
		answer, err := d.doMulti(ctx, conn, []rueidis.Completed{scan})[0].AsScanEntry()
		if err != nil {
			err, _ = redisdriver.Fault(ctx, "", err)
			return false, err
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

// dedicate returns a connection to a server that nobody else uses. The caller
// closes it. A connection that is given back to the library unsubscribes from all
// channels, and the library does not survive a server that refuses this: see
// package redistopic. The library connects under no context.
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

// locksAmong returns those of the keys that are locks.
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
			if err, _ = redisdriver.Fault(ctx, name, err); !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "to run") {
				return nil, err
			}
		}
		if holdField.MatchString(field) || (field == modeField || strings.HasPrefix(field, "dsync:")) && (mode == "read" || mode == "write") {
			locks = append(locks, name)
		}
	}
	return locks, nil
}

// permitsAmong returns the names that begin with prefix and of which permits are held, whose ends are in the keys.
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
			if err, _ = redisdriver.Fault(ctx, name, err); !errors.Is(err, fs.ErrPermission) {
				return nil, err
			}
		}
		if status.Held {
			held = append(held, name)
		}
	}
	return held, nil
}
