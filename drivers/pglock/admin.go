package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
	migration "github.com/go-dsync/dsync/driver/move"
)

// Inspect implements driver.Inspector. The server knows holders and waiters by
// their process id, used as Status.Hold, and by their application_name, used as
// Status.Owner and in Status.Queue. For its own holds, the driver adds what it
// knows itself.
func (d *Driver) Inspect(ctx context.Context, name string) (driver.Status, error) {
	var status driver.Status
	key, err := d.admin(ctx, name)
	if err != nil {
		return status, err
	}
	rows, err := d.query(ctx, holdersQuery, key.locksRow()...)
	if err != nil {
		return status, err
	}
	for _, row := range rows {
		if len(row) != 4 || len(row[0]) != 4 || len(row[1]) != 1 || len(row[3]) != 1 {
			return status, errAnswer
		}
		pid, granted := binary.BigEndian.Uint32(row[0]), row[1][0] != 0
		who := fmt.Sprintf("%s (server process %d)", row[2], pid)
		switch {
		case !granted:
			status.Waiters++
			status.Queue = append(status.Queue, who)
		default:
			own := slices.DeleteFunc(d.holders(key), func(l *lease) bool { return l.session.pid != pid })
			status.Holders += max(1, len(own))
			if status.Held {
				continue
			}
			status.Held, status.Hold, status.Owner = true, fmt.Sprint(pid), who
			if row[3][0] != 0 {
				status.Mode = driver.Read
			}
			if len(own) > 0 {
				own[0].describe(&status)
			}
		}
	}
	return status, nil
}

// Ping implements driver.Pinger. Inspect reads pg_locks, which in the meantime
// blocks all acquires and releases of locks of any kind on the server. If the
// last new connection was refused, Ping tries to connect. Otherwise an old
// connection would answer the request although no caller could wait for a name.
func (d *Driver) Ping(ctx context.Context) error {
	if err := d.usable(ctx); err != nil {
		return err
	}
	if d.refused.Load() {
		s, err := d.dial(ctx, d.home, true)
		if err != nil {
			return err
		}
		s.hangUp()
	}
	op := newOperation(ping, AdvisoryKey{})
	if err := d.submit(ctx, op, nil); err != nil {
		return err
	}
	return op.wait(ctx)
}

// holders returns the leases of this driver.
func (d *Driver) holders(key AdvisoryKey) []*lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.queues[key]; q != nil {
		return slices.Collect(q.holders.All())
	}
	return nil
}

// describe adds the driver's knowledge about one of its own holds.
func (l *lease) describe(status *driver.Status) {
	status.Hold, status.Owner, status.Note, status.Since = l.r.Hold, l.r.Owner, l.r.Note, l.since
	status.Mode = l.r.Mode
	if l.first != 0 && l.keeps() {
		status.Token = l.first + tokensPerGrant - 1
	}
	status.TTL = max(0, time.Until(l.Expires()))
}

// ForceUnlock implements driver.ForceUnlocker, if Options.ForceUnlock allows
// it, by ending the holders' sessions.
func (d *Driver) ForceUnlock(ctx context.Context, name string) error {
	if !d.options.ForceUnlock {
		return fmt.Errorf("a lock can only be removed together with all other locks of its session (Options.ForceUnlock allows that): %w",
			errors.ErrUnsupported)
	}
	key, err := d.admin(ctx, name)
	if err != nil {
		return err
	}
	ended := map[uint32]bool{}
	for _, l := range d.holders(key) {
		// a session of this driver would get no answer to a request that ends
		// the session itself
		l.session.end(errForced)
		ended[l.session.pid] = true
	}
	rows, err := d.query(ctx, forceQuery, key.locksRow()...)
	if err != nil {
		return err
	}
	if len(rows) == 0 && len(ended) == 0 {
		return driver.ErrNotHeld
	}
	for _, row := range rows {
		if len(row) != 2 || len(row[0]) != 4 {
			return errAnswer
		}
		ended[binary.BigEndian.Uint32(row[0])] = true
	}
	return d.awaitEnd(ctx, key, ended)
}

// The first and the longest pause between two checks of terminated sessions.
// Each pause is twice the previous one.
const firstGlance, lastGlance = time.Millisecond, 50 * time.Millisecond

// awaitEnd waits until none of the server's processes holds the lock.
// A process ends some time after its termination was requested.
func (d *Driver) awaitEnd(ctx context.Context, key AdvisoryKey, pids map[uint32]bool) error {
	for wait := firstGlance; ; wait = min(2*wait, lastGlance) {
		rows, err := d.query(ctx, holdersQuery, key.locksRow()...)
		if err != nil {
			return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
		}
		held := slices.ContainsFunc(rows, func(row [][]byte) bool {
			return len(row) == 4 && len(row[0]) == 4 && len(row[1]) == 1 && row[1][0] != 0 && pids[binary.BigEndian.Uint32(row[0])]
		})
		if !held {
			return nil
		}
		if !d.life.Sleep(ctx, wait) {
			return fmt.Errorf("%w: the termination of the holder's session was requested", driver.ErrUnknown)
		}
	}
}

// admin begins each call about a name. It returns the key.
func (d *Driver) admin(ctx context.Context, name string) (AdvisoryKey, error) {
	if err := d.usable(ctx); err != nil {
		return AdvisoryKey{}, err
	}
	return d.key(ctx, name)
}

// usable returns an error if ctx has ended, or the driver is closed.
func (d *Driver) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.life.Open().Err() != nil {
		return driver.ErrClosed
	}
	return nil
}

// locksRow returns the key's columns in pg_locks: classid, objid, objsubid.
func (k AdvisoryKey) locksRow() [][]byte {
	form := uint16(1)
	if k.pair {
		form = 2
	}
	return [][]byte{int4(uint32(k.bits >> 32)), int4(uint32(k.bits)), binary.BigEndian.AppendUint16(nil, form)}
}

// listQuery lists the advisory locks of the database.
const listQuery = `SELECT DISTINCT classid, objid, objsubid FROM pg_catalog.pg_locks WHERE granted AND locktype = 'advisory' ` +
	`AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`

// List implements driver.Lister if names are numbers ([NumberKey], [PairKey]),
// and yields the numbers that are locked. The server knows other names only by
// their hashes.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		names, err := d.list(ctx)
		if err != nil {
			yield("", err)
			return
		}
		for _, name := range names {
			if strings.HasPrefix(name, prefix) && !yield(name, nil) {
				return
			}
		}
	}
}

func (d *Driver) list(ctx context.Context) (names []string, err error) {
	if d.keys.custom == nil {
		return nil, fmt.Errorf("the server keeps only hashes of names; with key=number or key=pair in the URL, the locked numbers can be listed: %w",
			errors.ErrUnsupported)
	}
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	rows, err := d.query(ctx, listQuery)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if len(row) != 3 || len(row[0]) != 4 || len(row[1]) != 4 || len(row[2]) != 2 {
			return nil, errAnswer
		}
		high, low := binary.BigEndian.Uint32(row[0]), binary.BigEndian.Uint32(row[1])
		k, name := AdvisoryKey{bits: uint64(high)<<32 | uint64(low)}, ""
		if k.pair = binary.BigEndian.Uint16(row[2]) == 2; k.pair {
			name = fmt.Sprintf("%d/%d", int32(high), int32(low))
		} else {
			name = strconv.FormatInt(int64(k.bits), 10)
		}
		if own, err := d.keys.custom(name); err == nil && own == k {
			names = append(names, name)
		}
	}
	return names, nil
}

var _ migration.Identifier = (*Driver)(nil)

// identityQuery returns the identifier of the server's data directory, which
// standbys share, and the id of the database.
const identityQuery = `SELECT s.system_identifier, d.oid FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d ` +
	`WHERE d.datname = pg_catalog.current_database()`

// Identity implements move.Identifier. A role that may not call
// pg_control_system gets an error.
func (d *Driver) Identity(ctx context.Context) (uint64, error) {
	rows, err := d.query(ctx, identityQuery)
	if err != nil {
		return 0, err
	}
	if len(rows) != 1 || len(rows[0]) != 2 || len(rows[0][0]) != 8 || len(rows[0][1]) != 4 {
		return 0, errAnswer
	}
	hash := fnv.New64a()
	hash.Write(rows[0][0])
	hash.Write(rows[0][1])
	return hash.Sum64(), nil
}
