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
)

// List looks at scanKeys keys with one request, and pauses after each, so that others notice little of it.
const (
	scanKeys  = "1000"
	scanPause = 10 * time.Millisecond
)

// holdField is what the fields of a lock look like: a client, and a number of the client's.
var holdField = regexp.MustCompile(`^[^:]+:[0-9]+(:write)?$`)

// escapeGlob makes a pattern of a text that matches nothing else.
var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// List implements driver.Lister. It goes through all keys of the server, a hundred thousand in a second at most, and takes hashes whose fields
// look like holds for locks. Sealed names are left out, and keys that the user has no right to.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := d.admin(ctx, "list"); err != nil { // any name will do
			yield("", err)
			return
		}
		nodes := map[string]rueidis.Client{"": d.client}
		if d.cluster {
			nodes = d.client.Nodes()
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

// listAt yields the names on one node. GoOn is false when nobody wants more.
func (d *Driver) listAt(ctx context.Context, node rueidis.Client, prefix string, yield func(string, error) bool) (goOn bool, err error) {
	pause := time.NewTicker(scanPause)
	defer pause.Stop()
	for cursor := "0"; ; {
		scan := node.B().Arbitrary("SCAN", cursor, "MATCH", escapeGlob.Replace(prefix)+"*", "COUNT", scanKeys, "TYPE", "hash").Build()
		answer, err := d.doMulti(ctx, node, []rueidis.Completed{scan})[0].AsScanEntry()
		if err != nil {
			err, _ = fault(ctx, "", err)
			return false, err
		}
		names, err := d.locksAmong(ctx, answer.Elements)
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
			if err, _ = fault(ctx, name, err); !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "to run") {
				return nil, err
			}
		}
		if holdField.MatchString(field) || field == modeField && (mode == "read" || mode == "write") {
			locks = append(locks, name)
		}
	}
	return locks, nil
}
