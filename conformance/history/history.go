// Package history records the calls that users of locks made and the results
// that they got, and judges whether these were legal. The judge knows only the
// records, so it can judge a run on any locks of package dsync, on any backend,
// in any number of processes.
//
//	h := history.New() // in memory; for several processes, each has a file: history.Create, history.Read
//	...                // workers record their attempts: see History
//	h.Close()
//	v := history.Judge(h.Events(), history.Bounds{Fenced: true, Linger: ttl + info.Late})
//	if err := v.Err(); err != nil {
//		t.Error(err)
//	}
//
// [Bounds] contains the limits and guarantees that apply to the run. [Rule]
// lists the rules: holds of two owners must not overlap, tokens must rise, a
// holder must be notified of a loss in time, waiters must be woken, and results
// must not contradict each other. A [Verdict] also reports when a run proves
// nothing because too little happened. If the records are ambiguous, the judge
// decides in favor of the locks.
//
// Injected faults are recorded too ([History.Fault]), because no progress is
// expected during a fault.
package history

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// A History records the calls that users of locks made and the results that
// they got. [Judge] decides whether these were legal. All methods may be called
// from many goroutines.
//
// Every record is conservative. The recorded hold begins after the call has
// returned and ends before the release is called. So a hold is never recorded
// as longer than it was, and every violation that Judge finds did happen.
//
// A worker is instrumented as follows.
//
//	op := h.Begin(history.Attempt{Client: "c1", Name: name})
//	lease, err := client.Lock(ctx, name)
//	if op.Returned(lease, err); err != nil {
//		continue
//	}
//	select {
//	case <-lease.Done():
//		op.Lost()
//	case <-work:
//	}
//	op.Released(lease.Unlock(op.Releasing(ctx)))
//
// A History in memory ([New]) takes its time from time.Now, so it works on the
// fake clock of testing/synctest. In a run of several processes, each writes
// its own file ([Create]), and [Read] merges the files.
type History struct {
	now  func() time.Duration
	proc string
	out  *file // nil means in memory

	mu     sync.Mutex
	events []Event
	seq    uint64
	calls  uint64
	closed bool
	err    error
}

// New returns a History in memory. Its time starts at zero.
func New() *History {
	start := time.Now()
	h := &History{now: func() time.Duration { return time.Since(start) }}
	h.record(Event{Time: h.now(), Kind: KindMeta})
	return h
}

// Events returns the records of a History in memory, in the order that Judge
// expects. Close the History first: Judge treats an attempt that has not
// returned as pending at Close.
func (h *History) Events() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return merge(h.events)
}

// Close records the orderly end of this process. A process without this record
// counts as killed. Later records are dropped. Close returns the first error of
// writing the file.
func (h *History) Close() error {
	h.record(Event{Time: h.now(), Kind: KindEnd})
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		if h.out != nil {
			if err := h.out.Close(); h.err == nil {
				h.err = err
			}
		}
	}
	return h.err
}

func (h *History) record(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.err != nil {
		return
	}
	h.seq++
	e.Seq, e.Proc = h.seq, h.proc
	if h.out == nil {
		h.events = append(h.events, e)
		return
	}
	h.err = h.out.write(e)
}

func (h *History) nextCall() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	return h.calls
}

// Attempt describes a request for a lock by a client.
type Attempt struct {
	Client string // any label; distinct clients must exclude each other
	// attempts with the same Client and Owner re-enter; if empty, this attempt
	// is a separate owner
	Owner  string
	Name   string
	NoWait bool        // TryLock
	Mode   driver.Mode // the mode of the request

	Permits, Limit int // as in dsync.Permits
}

// Claim is the part of a lease that a History reads. A *dsync.Lease is a Claim.
type Claim interface {
	Token() uint64
	Deadline() time.Time
	Err() error
}

// An Op is one attempt to acquire a lock, with its hold. Its methods must be
// called by one goroutine at a time, except for Lost, which may be called
// concurrently with the others.
type Op struct {
	h     *History
	event Event // the fields that all events of this Op share
	lease Claim
}

// Begin records that the lock is about to be requested.
func (h *History) Begin(a Attempt) *Op {
	o := &Op{h: h, event: Event{Call: h.nextCall(), Client: a.Client, Owner: a.Owner, Name: a.Name, NoWait: a.NoWait, Mode: a.Mode,
		Permits: a.Permits, Limit: a.Limit}}
	o.record(Event{Time: h.now(), Kind: KindCall})
	return o
}

func (o *Op) record(e Event) {
	e.Call, e.Client, e.Owner, e.Name, e.NoWait = o.event.Call, o.event.Client, o.event.Owner, o.event.Name, o.event.NoWait
	if e.Kind != KindAnswer {
		e.Mode = o.event.Mode
	}
	if e.Kind == KindCall {
		e.Permits, e.Limit = o.event.Permits, o.event.Limit
	}
	o.h.record(e)
}

// Waiting records that the attempt has been seen in the backend's queue.
// Without this record Judge cannot tell which attempt came first. Call Waiting
// before Returned, from any goroutine.
func (o *Op) Waiting() {
	o.record(Event{Time: o.h.now(), Kind: KindWait})
}

// Returned records the outcome of the attempt, right after the call returned. l
// is ignored if err is not nil.
func (o *Op) Returned(l Claim, err error) {
	now := o.h.now()
	if err != nil {
		e := Event{Time: now, Kind: KindFail}.because(err)
		if e.Class == ClassLocked {
			e.Kind = KindRefuse
		}
		o.record(e)
		return
	}
	o.lease = l
	o.record(Event{Time: now, Kind: KindGrant, Token: l.Token(), Deadline: deadline(now, time.Now(), l)})
}

// Check calls the lease's Check, records the result and returns it. Call Check
// before each access to the protected resource, and from time to time during a
// long hold. Judge learns of renewals from these records.
func (o *Op) Check() error {
	e, err := o.sample(KindCheck)
	o.record(e)
	return err
}

// Renewed records the new deadline after Extend returned nil.
func (o *Op) Renewed() {
	now := o.h.now()
	o.record(Event{Time: now, Kind: KindRenew, Deadline: deadline(now, time.Now(), o.lease)})
}

// Lost records that the lease's Done was closed for a reason other than Unlock.
// Call Lost as soon as you detect that.
func (o *Op) Lost() {
	o.record(Event{Time: o.h.now(), Kind: KindLose}.because(o.lease.Err()))
}

// Releasing records that the lease is about to be unlocked, and whether the
// lease reported that it was still held. It returns the context for Unlock,
// from which [Answered] learns the Op of a release.
func (o *Op) Releasing(ctx context.Context) context.Context {
	e, _ := o.sample(KindRelease)
	o.record(e)
	return context.WithValue(ctx, opKey{}, o)
}

type opKey struct{}

// Answered records that the driver's Release has returned err, if Release was
// called by an Unlock with the context of [Op.Releasing]. Code between package
// dsync and the driver calls Answered (see [Tap]). ctx is Release's context,
// mode is the mode of the driver's request, and granted is the time at which
// the driver's Acquire returned the lease.
//
// An Unlock need not send a request to the backend, since it may leave the hold
// to another lease. So a nil result of Release proves that the backend had the
// hold until then, but a nil result of Unlock does not.
func Answered(ctx context.Context, mode driver.Mode, granted time.Time, err error) {
	o, ok := ctx.Value(opKey{}).(*Op)
	if !ok {
		return
	}
	ago := time.Since(granted)
	e := Event{Time: o.h.now(), Kind: KindAnswer, Mode: mode}
	e.Since = max(e.Time-ago, 1)
	switch {
	case errors.Is(err, driver.ErrNotHeld):
		e.Class = ClassNotHeld
	case err != nil:
		e.Class = ClassUnknown
	}
	o.record(e)
}

// Released records the result of Unlock.
func (o *Op) Released(err error) {
	e := Event{Time: o.h.now(), Kind: KindReleased}
	if err != nil {
		e = Event{Time: e.Time, Kind: KindNotReleased}.because(err)
	}
	o.record(e)
}

// sample queries the state of the lease. It reads the clock first. If the lease
// is held afterwards, it was held at that time, because no lease is ever
// revived.
func (o *Op) sample(k Kind) (Event, error) {
	now, before := o.h.now(), time.Now()
	err := o.lease.Err()
	e := Event{Time: now, Kind: k, OK: err == nil, Deadline: deadline(now, before, o.lease)}
	if err != nil {
		e = e.because(err)
	}
	return e, err
}

// deadline converts the deadline of l to the clock of the History. The time t
// was read on that clock just before local was read. The result is never later
// than the true deadline.
func deadline(t time.Duration, local time.Time, l Claim) time.Duration {
	d := l.Deadline()
	if d.IsZero() {
		return 0
	}
	return t + min(max(d.Sub(local), 1-t), math.MaxInt64/4)
}

// Wrote records a request to write data that the lock of this name protects.
// The resource itself calls Wrote, while it holds the mutex (or the like) that
// serializes its accesses. All accesses under one name must be recorded by the
// same process.
func (h *History) Wrote(name string, token uint64, accepted bool) {
	h.record(Event{Time: h.now(), Kind: KindWrite, Name: name, Token: token, OK: accepted})
}

// Saw records a request to read data that the lock of this name protects, as
// Wrote does for writes.
func (h *History) Saw(name string, token uint64, accepted bool) {
	h.record(Event{Time: h.now(), Kind: KindRead, Name: name, Token: token, OK: accepted})
}

// SettingLimit records that SetLimit is about to be called. The function
// returned records the result of the call.
func (h *History) SettingLimit(name string, limit int) (returned func(error)) {
	e := Event{Call: h.nextCall(), Name: name, Limit: limit}
	e.Time, e.Kind = h.now(), KindSetLimit
	h.record(e)
	return func(err error) {
		e.Time, e.Kind = h.now(), KindLimitSet
		h.record(e.because(err))
	}
}

// FaultKill is the kind of fault that kills a process with its own History. The
// target is the label of that History.
const FaultKill = "kill"

// Fault records that a fault is about to be injected. The function off records
// that the fault has ended; call it once, when everything works again. Between
// the two, and for a while after (Bounds.Recover), Judge expects no progress.
func (h *History) Fault(kind, target string) (off func()) {
	e := Event{Call: h.nextCall(), Class: kind, Text: target}
	e.Time, e.Kind = h.now(), KindFaultOn
	h.record(e)
	return func() {
		e.Time, e.Kind = h.now(), KindFaultOff
		h.record(e)
	}
}

// Note records a remark for people, such as the seed and the versions of a run.
func (h *History) Note(text string) {
	h.record(Event{Time: h.now(), Kind: KindMeta, Text: text})
}

// Tap returns a driver for dsync.New that records the answers of d to releases
// ([Answered]). If Bounds.Detect is not 0, Judge needs these records to
// determine what happened shortly before the end of a hold. The returned driver
// has only one of the optional interfaces of d, driver.BatchRenewer.
func Tap(d driver.Driver) driver.Driver {
	if b, ok := d.(driver.BatchRenewer); ok {
		return batchTap{tap{d}, b}
	}
	return tap{d}
}

type tap struct{ driver.Driver }

// Acquire implements driver.Driver.
func (t tap) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := t.Driver.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	tl := &tapLease{l, r.Mode, time.Now()}
	if c, ok := l.(driver.ContentionReporter); ok {
		return contendedLease{tl, c}, nil
	}
	if p, ok := l.(driver.Passer); ok {
		return passedLease{tl, p}, nil
	}
	return tl, nil
}

type batchTap struct {
	tap
	inner driver.BatchRenewer
}

// RenewAll implements driver.BatchRenewer.
func (t batchTap) RenewAll(ctx context.Context, leases []driver.Lease, done func(i int, err error)) {
	inner := make([]driver.Lease, len(leases))
	for i, l := range leases {
		inner[i] = l.(interface{ untap() driver.Lease }).untap()
	}
	t.inner.RenewAll(ctx, inner, done)
}

type tapLease struct {
	driver.Lease
	mode    driver.Mode
	granted time.Time
}

func (l *tapLease) untap() driver.Lease { return l.Lease }

// KeepTokens implements driver.TokenKeeper, even for a lease without the
// interface.
func (l *tapLease) KeepTokens(ctx context.Context) error {
	if k, ok := l.Lease.(driver.TokenKeeper); ok {
		return k.KeepTokens(ctx)
	}
	return nil
}

// Session implements driver.SessionLease, even for a lease without the
// interface.
func (l *tapLease) Session() (time.Time, time.Duration) {
	if s, ok := l.Lease.(driver.SessionLease); ok {
		return s.Session()
	}
	return time.Time{}, 0
}

// Release implements driver.Lease.
func (l *tapLease) Release(ctx context.Context) error {
	err := l.Lease.Release(ctx)
	Answered(ctx, l.mode, l.granted, err)
	return err
}

type contendedLease struct {
	*tapLease
	driver.ContentionReporter
}

type passedLease struct {
	*tapLease
	driver.Passer
}
