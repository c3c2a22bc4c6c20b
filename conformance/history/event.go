package history

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// Event is one record of a [History], and one line of its file.
type Event struct {
	Proc     string        `json:"p,omitempty"`   // label of the recording process
	Seq      uint64        `json:"q"`             // 1, 2, 3, … within the process
	Time     time.Duration `json:"t"`             // since an arbitrary moment, the same for all processes
	Kind     Kind          `json:"e"`             // what happened
	Call     uint64        `json:"h,omitempty"`   // number of the attempt, or of the fault, within the process
	Client   string        `json:"cl,omitempty"`  // from Attempt
	Owner    string        `json:"ow,omitempty"`  // from Attempt
	Name     string        `json:"n,omitempty"`   // from Attempt
	NoWait   bool          `json:"nw,omitempty"`  // from Attempt
	Mode     driver.Mode   `json:"m,omitempty"`   // from Attempt; of KindAnswer: of the driver's request
	Permits  int           `json:"np,omitempty"`  // from Attempt
	Limit    int           `json:"lim,omitempty"` // from Attempt; of KindSetLimit: the limit
	Token    uint64        `json:"tok,omitempty"` // of a grant or an access; 0: none
	Deadline time.Duration `json:"dl,omitempty"`  // of the lease when the event was recorded; 0: none
	Since    time.Duration `json:"s,omitempty"`   // KindAnswer: the driver had been granted the hold by then
	OK       bool          `json:"ok,omitempty"`  // KindCheck, KindRelease: the lease reported that it was held; KindWrite, KindRead: accepted
	Class    string        `json:"cls,omitempty"` // of the error; of a fault: its kind
	Text     string        `json:"txt,omitempty"` // of an error outside of all classes, of a note; of a fault: its target
}

// Kind is the kind of an [Event].
type Kind string

const (
	KindCall    Kind = "acq.call"    // Lock or TryLock is about to be called
	KindWait    Kind = "acq.wait"    // the attempt has been seen in the queue
	KindGrant   Kind = "acq.ok"      // the call returned a lease
	KindRefuse  Kind = "acq.refused" // the call returned ErrLocked
	KindFail    Kind = "acq.err"     // the call returned another error
	KindCheck   Kind = "valid"       // the lease was checked
	KindRenew   Kind = "renew.ok"    // Extend returned nil
	KindLose    Kind = "lost"        // Done is closed
	KindRelease Kind = "rel.call"    // Unlock is about to be called
	// the driver's Release, which Unlock called, returned nil (no class) or an
	// error; see Answered
	KindAnswer      Kind = "rel.answer"
	KindReleased    Kind = "rel.ok"     // the call returned nil
	KindNotReleased Kind = "rel.err"    // the call returned an error
	KindSetLimit    Kind = "limit.call" // SetLimit is about to be called
	KindLimitSet    Kind = "limit.back" // the call returned nil (no class) or an error
	KindWrite       Kind = "cs.write"   // the protected resource was written
	KindRead        Kind = "cs.read"    // the protected resource was read
	KindFaultOn     Kind = "fault.on"   // a fault is about to begin
	KindFaultOff    Kind = "fault.off"  // the fault has ended
	KindMeta        Kind = "meta"       // first event of a process, and notes
	KindEnd         Kind = "end"        // last event of a process that was not killed
)

var kinds = []Kind{KindCall, KindWait, KindGrant, KindRefuse, KindFail, KindCheck, KindRenew, KindLose, KindRelease, KindAnswer,
	KindReleased, KindNotReleased, KindSetLimit, KindLimitSet, KindWrite, KindRead, KindFaultOn, KindFaultOff, KindMeta, KindEnd}

// The classes of errors in an [Event].
const (
	ClassUnknown      = "unknown"     // dsync.ErrUnknown
	ClassRemoved      = "removed"     // driver.ErrRemoved
	ClassSessionEnded = "session"     // driver.ErrSessionEnded
	ClassNotHeld      = "notheld"     // dsync.ErrNotHeld, but neither of the two above
	ClassCanceled     = "canceled"    // context.Canceled
	ClassDeadline     = "deadline"    // context.DeadlineExceeded
	ClassLocked       = "locked"      // dsync.ErrLocked
	ClassDeadlock     = "deadlock"    // dsync.ErrDeadlock
	ClassUnavailable  = "unavailable" // dsync.ErrUnavailable
	ClassClosed       = "closed"      // dsync.ErrClosed
	ClassSealed       = "sealed"      // driver.ErrSealed
	ClassLimit        = "limit"       // dsync.ErrLimit
	ClassUnsupported  = "unsupported" // errors.ErrUnsupported
	ClassPermission   = "permission"  // fs.ErrPermission
	ClassOther        = "other"       // none of these, and so not legal
)

// An error that matches several classes belongs to the first of them.
var classes = []struct {
	err  error
	name string
}{
	{driver.ErrRemoved, ClassRemoved},
	{driver.ErrSessionEnded, ClassSessionEnded},
	{dsync.ErrNotHeld, ClassNotHeld},
	{dsync.ErrUnknown, ClassUnknown},
	{context.Canceled, ClassCanceled},
	{context.DeadlineExceeded, ClassDeadline},
	{dsync.ErrLocked, ClassLocked},
	{dsync.ErrDeadlock, ClassDeadlock},
	{dsync.ErrUnavailable, ClassUnavailable},
	{dsync.ErrClosed, ClassClosed},
	{driver.ErrSealed, ClassSealed},
	{dsync.ErrLimit, ClassLimit},
	{errors.ErrUnsupported, ClassUnsupported},
	{fs.ErrPermission, ClassPermission},
}

// because returns e with the class of err. A nil err has no class.
func (e Event) because(err error) Event {
	switch {
	case err == nil:
		return e
	case e.Kind == KindFail && errors.Is(err, dsync.ErrUnknown):
		// the hold may exist, regardless of the rest of the error
		e.Class = ClassUnknown
		return e
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			e.Class = c.name
			return e
		}
	}
	e.Class, e.Text = ClassOther, err.Error()
	return e
}

// merge returns the events in the order of [compareEvents].
func merge(events ...[]Event) []Event {
	all := slices.Concat(events...)
	if !slices.IsSortedFunc(all, compareEvents) {
		slices.SortFunc(all, compareEvents)
	}
	return all
}

// compareEvents orders events by time, and simultaneous events by process and
// sequence number.
func compareEvents(a, b Event) int {
	if a.Time != b.Time {
		return cmp.Compare(a.Time, b.Time)
	}
	return cmp.Or(cmp.Compare(a.Proc, b.Proc), cmp.Compare(a.Seq, b.Seq))
}

// String formats the event for people, on one line.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%14.6f  %-12s %-11s", e.Time.Seconds(), fmt.Sprintf("%s#%d", e.Proc, e.Call), e.Kind)
	field := func(present bool, format string, v any) {
		if present {
			fmt.Fprintf(&b, format, v)
		}
	}
	field(e.Client != "", " client=%s", e.Client)
	field(e.Owner != "", " owner=%s", e.Owner)
	field(e.NoWait, "%s", " nowait")
	field(e.Mode != driver.Exclusive, " %v", e.Mode)
	field(e.Permits != 0, " permits=%d", e.Permits)
	field(e.Limit != 0, " limit=%d", e.Limit)
	field(e.Token != 0, " token=%d", e.Token)
	field(e.Deadline != 0, " deadline=%.6f", e.Deadline.Seconds())
	field(e.Since != 0, " since=%.6f", e.Since.Seconds())
	switch e.Kind {
	case KindCheck, KindRelease:
		field(true, " held=%t", e.OK)
	case KindWrite, KindRead:
		field(true, " accepted=%t", e.OK)
	}
	field(e.Class != "", " %s", e.Class)
	field(e.Text != "", " %q", e.Text)
	return b.String()
}

// Create returns a History that writes to a new file at path. It writes one
// JSON object per line, each in a single unbuffered write, so that the records
// survive the death of the process. process is the label of this process,
// unique in the run. A process that is started again uses a new label and a new
// file.
//
// The time comes from a clock that all processes of the machine share:
// CLOCK_MONOTONIC on Linux, and elsewhere the wall clock. With the wall clock,
// the records of a run are useless if the clock is set during the run.
func Create(path, process string) (*History, error) {
	if process == "" {
		return nil, errors.New("history: the process needs a label")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	h := &History{now: sharedClock, proc: process, out: &file{f}}
	h.record(Event{Time: h.now(), Kind: KindMeta, Text: fmt.Sprintf("pid %d, %s", os.Getpid(), time.Now().UTC().Format(time.RFC3339))})
	if h.err != nil {
		return nil, errors.Join(h.err, f.Close())
	}
	return h, nil
}

type file struct{ *os.File }

func (f *file) write(e Event) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// Read reads the files of all processes of a run and returns their events in
// the order that Judge expects. Each file must be the complete record of one
// process. Otherwise Read returns an error. The only exception is a last line
// that was cut off when the process died. Read ignores such a line.
func Read(paths ...string) ([]Event, error) {
	var all [][]Event
	from := map[string]string{}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
		events, err := readEvents(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("history: %s: %w", path, err)
		}
		proc := events[0].Proc
		if other, taken := from[proc]; taken {
			return nil, fmt.Errorf("history: %s and %s are both of process %q", other, path, proc)
		}
		from[proc] = path
		all = append(all, events)
	}
	return merge(all...), nil
}

// readEvents reads the file of one process. It returns at least one event, or
// an error.
func readEvents(r io.Reader) ([]Event, error) {
	var events []Event
	in := bufio.NewReader(r)
	for n := uint64(1); ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		e, err := parseEvent(line)
		if err == nil {
			err = follows(events, e, n)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		return nil, errors.New("no events")
	}
	return events, nil
}

func parseEvent(line []byte) (Event, error) {
	var e Event
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return e, err
	}
	if d.InputOffset() != int64(len(line)-1) {
		return e, errors.New("not one JSON object")
	}
	if !slices.Contains(kinds, e.Kind) {
		return e, fmt.Errorf("unknown kind of event %q", e.Kind)
	}
	if e.Mode < driver.Exclusive || e.Mode > driver.Permit {
		return e, fmt.Errorf("unknown mode %d", e.Mode)
	}
	return e, nil
}

// follows returns an error if e cannot be the nth event of a process.
func follows(events []Event, e Event, n uint64) error {
	switch {
	case e.Seq != n:
		return fmt.Errorf("event %d is missing, found %d", n, e.Seq)
	case n == 1 && (e.Kind != KindMeta || e.Proc == ""):
		return fmt.Errorf("the first event is %q of process %q", e.Kind, e.Proc)
	case n > 1 && e.Proc != events[0].Proc:
		return fmt.Errorf("event of process %q in the file of %q", e.Proc, events[0].Proc)
	case n > 1 && events[n-2].Kind == KindEnd:
		return errors.New("event after the end")
	}
	return nil
}
