package sqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-dsync/dsync/driver/cas"
)

// NewShedLock returns a driver that uses a table of ShedLock, "shedlock" by
// default, so that Go programs and Java programs exclude each other. It has
// exclusive locks without tokens. The dialect is MySQL or PostgreSQL. In other
// respects it is like New.
func NewShedLock(ctx context.Context, db *sql.DB, dialect *Dialect, o *Options) (*cas.Driver, error) {
	if dialect.later == "" {
		return nil, fmt.Errorf("ShedLock's table in %s: %w", dialect.name, errors.ErrUnsupported)
	}
	s, options, err := prepare(db, dialect, o, "shedlock")
	if err != nil {
		return nil, err
	}
	options.Name, options.Plain = "shedlock", true
	s.ddl = "CREATE TABLE %s (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL, locked_by VARCHAR(255) NOT NULL)"
	shed := shedlock{s}
	if err := s.check(ctx, shed); err != nil {
		return nil, err
	}
	return cas.New(shed, options), nil
}

// shedlock is a cas.Store in a table of ShedLock. Each write sets locked_by to
// a new text of the form "dsync NONCE HOLD TTL OWNER", which is the version of
// the row. The version of a row that ShedLock wrote consists of its locked_by
// and lock_until.
type shedlock struct{ store *store }

// shedRecord is a value of cas.Options.Plain.
type shedRecord struct {
	Format int        `json:"format"`
	Name   string     `json:"name"`
	Nonce  string     `json:"nonce"`
	Holds  []shedHold `json:"holds"`
}

type shedHold struct {
	Hold  string        `json:"hold"`
	Owner string        `json:"owner"`
	TTL   time.Duration `json:"ttl"`
	Since time.Time     `json:"since"`
	Beat  string        `json:"beat"`
}

// shedRounding compensates for a column that stores milliseconds.
const shedRounding = time.Millisecond

// shedKey returns the name of a row as a parameter. A text would be compared by
// the collation of the column, as ShedLock does, but cannot contain arbitrary
// bytes.
func shedKey(d *Dialect, name string) any {
	if utf8.ValidString(name) {
		return name
	}
	return d.text(name)
}

// Read implements cas.Store.
func (s shedlock) Read(ctx context.Context, name string) (e cas.Entry, err error) {
	d := s.store.dialect
	query := d.statement(fmt.Sprintf("SELECT %s, l.locked_by, %s, %s FROM (SELECT 1 AS one) o LEFT JOIN %s l ON l.name = ?",
		d.micros, fmt.Sprintf(d.epoch, "l.lock_until"), fmt.Sprintf(d.epoch, "l.locked_at"), s.store.table))
	err = s.store.repeat(ctx, func() error {
		return s.store.query(ctx, query, []any{shedKey(d, name)}, func(row func(...any) error) (err error) {
			e, err = shedScan(name, row)
			return err
		})
	})
	return e, s.store.sorted(err)
}

// shedScan reads a row of time, locked_by, lock_until and locked_at.
func shedScan(name string, row func(...any) error, more ...any) (e cas.Entry, err error) {
	var now int64
	var by sql.NullString
	var until, at sql.NullInt64
	if err := row(append([]any{&now, &by, &until, &at}, more...)...); err != nil {
		return e, err
	}
	if e.Now = time.UnixMicro(now); !by.Valid {
		return e, nil
	}
	if len(more) > 0 {
		name = *more[0].(*string)
	}
	hold, owner, ttl := shedParse(by.String)
	end := time.UnixMicro(until.Int64)
	e.Version, e.Written = by.String, end.Add(-ttl-shedRounding)
	if ttl < 0 {
		e.Version, e.Written = by.String+"\x00"+strconv.FormatInt(until.Int64, 10), time.UnixMicro(at.Int64)
	}
	r := shedRecord{Format: 1, Name: name}
	if end.After(e.Now) {
		r.Holds = []shedHold{{Hold: hold, Owner: owner, TTL: end.Sub(e.Written), Since: time.UnixMicro(at.Int64), Beat: e.Version}}
	}
	e.Value, err = json.Marshal(r)
	return e, err
}

// shedParse returns the parts of a locked_by. The TTL is negative if ShedLock
// wrote it.
func shedParse(by string) (hold, owner string, ttl time.Duration) {
	fields := strings.SplitN(by, " ", 5)
	if len(fields) == 5 && fields[0] == "dsync" {
		hold, err1 := url.PathUnescape(fields[2])
		ttl, err2 := time.ParseDuration(fields[3])
		if owner, err := url.PathUnescape(fields[4]); err == nil { // otherwise the owner was cut off
			fields[4] = owner
		}
		if err1 == nil && err2 == nil {
			return hold, fields[4], ttl
		}
	}
	return by, by, -1
}

// shedBy returns a locked_by that was never used before.
func shedBy(hold, owner string, ttl time.Duration) string {
	by := fmt.Sprintf("dsync %s %s %v %s", rand.Text()[:16], url.PathEscape(hold), ttl, url.PathEscape(owner))
	return by[:min(len(by), 255)]
}

// Write implements cas.Store.
func (s shedlock) Write(ctx context.Context, name string, value []byte, version string) (next string, err error) {
	var r shedRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return "", err
	}
	if len(r.Holds) == 0 {
		return s.set(ctx, name, version, "", "", 0)
	}
	h := r.Holds[0]
	if h.Beat != r.Nonce {
		// this happens only after the clock was set back, and then the hold
		// ends first
		return "", cas.ErrChanged
	}
	return s.set(ctx, name, version, h.Hold, h.Owner, h.TTL)
}

// Delete implements cas.Store. As with ShedLock, the row stays.
func (s shedlock) Delete(ctx context.Context, name, version string) error {
	by, _, _ := strings.Cut(version, "\x00")
	hold, owner, _ := shedParse(by)
	_, err := s.set(ctx, name, version, hold, owner, 0)
	return err
}

// set sets the end of a lock, and the start if the hold is new. A TTL of 0 ends
// the lock.
func (s shedlock) set(ctx context.Context, name, version, hold, owner string, ttl time.Duration) (next string, err error) {
	d := s.store.dialect
	next = shedBy(hold, owner, ttl)
	now := fmt.Sprintf(d.later, 0)
	until := fmt.Sprintf(d.later, -shedRounding.Microseconds()) // PostgreSQL rounds up
	if ttl > 0 {
		until = fmt.Sprintf(d.later, (ttl + shedRounding).Microseconds())
	}
	if version == "" {
		query := fmt.Sprintf("INSERT INTO %s (name, lock_until, locked_at, locked_by) VALUES (?, %s, %s, ?)", s.store.table, until, now)
		return next, s.store.change(ctx, query, shedKey(d, name), next)
	}
	by, end, foreign := strings.Cut(version, "\x00")
	at := now
	if old, _, _ := shedParse(by); old == hold {
		at = "locked_at"
	}
	query := fmt.Sprintf("UPDATE %s SET lock_until = %s, locked_at = %s, locked_by = ? WHERE name = ? AND locked_by = ?", s.store.table, until, at)
	args := []any{next, shedKey(d, name), by}
	if foreign {
		query += " AND " + fmt.Sprintf(d.epoch, "lock_until") + " = " + end
	}
	return next, s.store.change(ctx, query, args...)
}

// List implements cas.Lister.
func (s shedlock) List(ctx context.Context, prefix string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		d := s.store.dialect
		query := fmt.Sprintf("SELECT %s, locked_by, %s, %s, name FROM %s WHERE lock_until > %s",
			d.micros, fmt.Sprintf(d.epoch, "lock_until"), fmt.Sprintf(d.epoch, "locked_at"), s.store.table, fmt.Sprintf(d.later, 0))
		var entries []cas.Entry
		err := s.store.query(ctx, query, nil, func(row func(...any) error) error {
			var name string
			e, err := shedScan("", row, &name)
			entries = append(entries, e)
			return err
		})
		if err != nil {
			yield(cas.Entry{}, s.store.sorted(err))
			return
		}
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}
