package cas

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// format is the version of the record's format. A driver refuses records with a
// later format.
const format = 1

// record is the value of a name in the store, in JSON.
type record struct {
	Format int     `json:"format"`
	Name   string  `json:"name"`
	Nonce  string  `json:"nonce"` // of this write: no two records are equal
	Holds  []claim `json:"holds,omitempty"`
	Queue  []claim `json:"queue,omitempty"` // the waiters in order
	Limit  int     `json:"limit,omitempty"` // of permits: stored while permits are held, or if Fixed
	Fixed  bool    `json:"fixed,omitempty"` // the limit was set by SetLimit, and stays
	Last   uint64  `json:"last,omitempty"`  // the last token, unless versions are the tokens
	Base   uint64  `json:"base,omitempty"`  // added to versions to make tokens
	Sealed *seal   `json:"seal,omitempty"`  // the name has moved to another backend
	Marked bool    `json:"mark,omitempty"`  // the name has come from another backend

	// Keep is the time at the store, in microseconds, until which the record
	// stays even if it is empty. If Keep is forever, the record is never
	// deleted.
	Keep int64 `json:"keep,omitempty"`
}

const forever = math.MaxInt64

// claim is a hold or a place in the queue. Both must be renewed.
type claim struct {
	Hold    string        `json:"hold"`
	Owner   string        `json:"owner,omitempty"`
	Note    string        `json:"note,omitempty"`
	Process string        `json:"process,omitempty"`
	Mode    driver.Mode   `json:"mode,omitempty"`
	Permits int           `json:"permits,omitempty"`
	TTL     time.Duration `json:"ttl"`
	Since   time.Time     `json:"since"`
	Token   uint64        `json:"token,omitempty"` // the last token of the grant

	// Beat is the nonce of the write that renewed the claim. At is the time of
	// that write by the store's clock, in nanoseconds. The write itself does
	// not know the time, so it leaves At 0, and the next write sets At from
	// Entry.Written. A Token that equals the version of its record is set in
	// the same way.
	Beat string `json:"beat"`
	At   int64  `json:"at,omitempty"`

	left time.Duration // time until the claim ends, as of when it was read
}

// view is a record that was read, or that this driver wrote.
type view struct {
	record
	version string // "": there is no record
	written time.Time
	now     time.Time // the store's time when the record was read
	at      time.Time // the local time when the answer arrived
	dirty   bool      // a job has changed it
}

// next returns a mutable copy.
func (v *view) next() *view {
	next := *v
	next.Holds, next.Queue = slices.Clone(v.Holds), slices.Clone(v.Queue)
	return &next
}

// clock returns a time that the store's clock has passed, in microseconds, or 0
// if there is no clock. It returns an earlier time if the clocks may differ in
// rate.
func (v *view) clock() int64 {
	if v.now.IsZero() {
		return 0
	}
	since := time.Since(v.at)
	return v.now.Add(since - since/100).UnixMicro()
}

// prune removes the expired claims, except the claims of jobs.
func (v *view) prune(jobs []*job) {
	over := func(c claim) bool {
		return c.left <= 0 && !slices.ContainsFunc(jobs, func(j *job) bool { return j.hold == c.Hold })
	}
	v.Holds, v.Queue = slices.DeleteFunc(v.Holds, over), slices.DeleteFunc(v.Queue, over)
}

// remove removes the claim of hold and reports whether there was one.
func (v *view) remove(hold string) bool {
	n := len(v.Holds) + len(v.Queue)
	its := func(c claim) bool { return c.Hold == hold }
	v.Holds, v.Queue = slices.DeleteFunc(v.Holds, its), slices.DeleteFunc(v.Queue, its)
	return len(v.Holds)+len(v.Queue) < n
}

// find returns the index of the claim of hold, or -1.
func find(claims []claim, hold string) int {
	return slices.IndexFunc(claims, func(c claim) bool { return c.Hold == hold })
}

// deletable reports whether the record has no state that is still needed.
func (v *view) deletable() bool {
	return len(v.Holds)+len(v.Queue) == 0 && !v.Fixed && v.Base == 0 && v.Sealed == nil && !v.Marked && (v.Keep == 0 || v.Keep < v.clock())
}

// vanishes reports whether the record of a free name is usually deleted.
func (o *Options) vanishes() bool { return (o.NoTokens || o.Rising) && !o.Plain }

// used returns the number of held permits.
func (v *view) used() (n int) {
	for _, h := range v.Holds {
		n += h.Permits
	}
	return n
}

// limit returns the stored limit of permits, or 0.
func (v *view) limit() int {
	if v.Fixed || v.used() > 0 {
		return v.Limit
	}
	return 0
}

// held reports whether a hold excludes the mode.
func (v *view) held(m driver.Mode) bool {
	return slices.ContainsFunc(v.Holds, func(c claim) bool { return c.Mode.Excludes(m) })
}

// admits returns nil if a request with this place in the queue can be granted
// now. Otherwise it returns ErrLocked (the request must wait), ErrLimit or
// ErrSealed. A newcomer has the place len(v.Queue).
func (v *view) admits(r *driver.Request, place int) error {
	if v.Sealed != nil {
		return driver.ErrSealed
	}
	if r.Mode == driver.Permit {
		limit := v.limit()
		if limit == 0 {
			limit = r.Limit
		}
		if r.Limit > 0 && r.Limit != limit || r.Permits > limit {
			return driver.ErrLimit
		}
		if v.used()+r.Permits > limit {
			return driver.ErrLocked
		}
	}
	if v.held(r.Mode) {
		return driver.ErrLocked
	}
	for _, ahead := range v.Queue[:place] {
		if r.Mode != driver.Read || ahead.Mode != driver.Read {
			return driver.ErrLocked
		}
	}
	return nil
}

// encode returns the value of the record next, which will replace v. It renews
// claims without a Beat.
func (d *Driver) encode(v, next *view) ([]byte, error) {
	next.Format, next.Nonce = format, rand.Text()[:16]
	if !next.Fixed && next.used() == 0 {
		next.Limit = 0
	}
	for _, claims := range [][]claim{next.Holds, next.Queue} {
		for i := range claims {
			switch c := &claims[i]; {
			case c.Beat == "":
				c.Beat, c.At = next.Nonce, 0
				c.left = c.TTL + time.Since(next.at)
			case c.At == 0 && d.Clock && v.written.IsZero():
				return nil, ErrChanged // only a read returns the time, so the job must read again
			case c.At == 0 && d.Clock:
				c.At = v.written.UnixNano()
			}
		}
	}
	for i := range next.Holds {
		if h := &next.Holds[i]; h.Token == 0 && h.Beat != next.Nonce {
			h.Token = d.tokenOf(v, h.Mode)
		}
	}
	return json.Marshal(&next.record)
}

// tokenOf returns the token of a hold that was granted by the write of this
// record, or 0 if versions are not tokens.
func (d *Driver) tokenOf(v *view, m driver.Mode) uint64 {
	if !d.Rising || d.NoTokens || m == driver.Permit {
		return 0
	}
	token, _ := strconv.ParseUint(v.version, 10, 64)
	return v.Base + token
}

// decode decodes an entry that has just arrived. It skips a known record.
func (d *Driver) decode(name string, e Entry, known *view) (*view, error) {
	v := &view{}
	v.Name = name
	if known != nil && known.version == e.Version {
		v = known.next()
	}
	if v.version, v.at = e.Version, time.Now(); d.Clock {
		if v.written, v.now = e.Written, e.Now; e.Now.IsZero() || e.Version != "" && e.Written.IsZero() {
			return nil, fmt.Errorf("the store returned a record without a time")
		}
	}
	if e.Version == "" {
		return v, nil
	}
	if v.Format == 0 {
		if err := json.Unmarshal(e.Value, &v.record); err != nil {
			return nil, fmt.Errorf("the record of %q was not written by package cas: %w", name, err)
		}
	}
	switch {
	case v.Format < 1 || v.Format > format:
		return nil, fmt.Errorf("the record of %q has format %d, but this version of package cas reads only formats up to %d", name, v.Format, format)
	case name != "" && v.Name != name:
		return nil, fmt.Errorf("the store returned the record of %q for %q", v.Name, name)
	}
	for _, claims := range [][]claim{v.Holds, v.Queue} {
		for i := range claims {
			c := &claims[i]
			switch {
			case !d.Clock:
				c.left = c.TTL - d.sights.unchanged(c, v.at)
			case c.At == 0:
				c.left = c.TTL - v.now.Sub(v.written)
			default:
				c.left = c.TTL - v.now.Sub(time.Unix(0, c.At))
			}
		}
	}
	return v, nil
}
