package stress

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-dsync/dsync/conformance/history"
)

const (
	sliceLength = 200             // operations
	sliceFor    = 5 * time.Second // limit of one search
)

// step is an operation of a client on a lock, and its outcome.
type step struct {
	release bool
	attempt int // the attempt that acquired the hold
}

// outcome is the result of a step.
type outcome string

const (
	done    outcome = "ok"
	refused outcome = "refused"
	either  outcome = "?"
)

// free is the state of a lock without a holder. Every other state is the number
// of the attempt that holds the lock.
const free = 0

// mutex is the sequential model of a lock. Some order of the operations must
// explain the record.
var mutex = porcupine.NondeterministicModel{
	Init: func() []any { return []any{free} },
	Step: func(state, input, output any) []any {
		held, s := state.(int), input.(step)
		var next []any
		if s.release {
			if held == s.attempt {
				next = append(next, free)
			}
			if output == either { // it has not happened yet, or the hold had ended
				next = append(next, held)
			}
			return next
		}
		if held == free && output != refused {
			next = append(next, s.attempt)
		}
		if output == either || output == refused && held != free {
			next = append(next, held)
		}
		return next
	},
	DescribeOperation: func(input, output any) string {
		s := input.(step)
		if s.release {
			return fmt.Sprintf("unlock %d: %v", s.attempt, output)
		}
		return fmt.Sprintf("lock %d: %v", s.attempt, output)
	},
	DescribeState: func(state any) string {
		if state == free {
			return "free"
		}
		return fmt.Sprint("held by ", state)
	},
}

// crossCheck makes porcupine search for an order that explains the operations
// on each name before the first fault. Unlike the judge, it includes refusals.
// A slice without such an order fails the cell and leaves a picture.
func (c *cell) crossCheck(events []history.Event) {
	for _, name := range c.names {
		operations := firstOperations(events, name)
		if c.bed.votes {
			operations = slices.DeleteFunc(operations, func(o porcupine.Operation) bool { return o.Output == refused })
		}
		if len(operations) == 0 {
			continue
		}
		model := mutex.ToModel()
		result, info := porcupine.CheckOperationsVerbose(model, operations, sliceFor)
		switch result {
		case porcupine.Ok:
			c.result.Slices++
		case porcupine.Unknown:
			c.result.Inconclusive++
		case porcupine.Illegal:
			path := filepath.Join(c.pictures(), c.bed.name+" "+c.fault.Name+" "+name+".html")
			c.result.Failed = append(c.result.Failed, fmt.Sprintf("porcupine finds no order that explains what happened to %q; picture: %s", name, path))
			if err := porcupine.VisualizePath(model, info, path); err != nil {
				c.t.Error(err)
			}
		}
	}
}

// firstOperations returns the operations on a name up to the first fault.
// Operations that had not returned by then may or may not have taken effect.
func firstOperations(events []history.Event, name string) []porcupine.Operation {
	r := reader{attempts: map[attemptID]int{}, open: map[attemptID]int{},
		called: map[attemptID]history.Event{}, granted: map[attemptID]history.Event{}}
	for _, e := range events {
		if e.Kind == history.KindFaultOn || len(r.all) >= sliceLength {
			break
		}
		if e.Name == name {
			r.read(e)
		}
	}
	return r.all
}

type attemptID struct {
	proc string
	call uint64
}

// reader converts events to operations.
type reader struct {
	all             []porcupine.Operation
	attempts        map[attemptID]int // numbers from 1
	called, granted map[attemptID]history.Event
	open            map[attemptID]int // the operation that has not returned
}

func (r *reader) read(e history.Event) {
	key := attemptID{e.Proc, e.Call}
	switch e.Kind {
	case history.KindCall:
		r.attempts[key], r.called[key] = len(r.attempts)+1, e
		r.begin(e, step{attempt: r.attempts[key]})
	case history.KindGrant:
		r.granted[key] = e
		r.end(key, e.Time, done)
	case history.KindRefuse:
		r.end(key, e.Time, refused)
	case history.KindFail: // the attempt may have held the lock for a while
		r.end(key, e.Time, either)
		r.freed(key, r.called[key])
	case history.KindRelease:
		r.begin(e, step{release: true, attempt: r.attempts[key]})
	case history.KindReleased:
		r.end(key, e.Time, done)
	case history.KindNotReleased, history.KindLose: // the hold ended at some time after the grant
		r.end(key, e.Time, either)
		r.freed(key, r.granted[key])
	}
}

func (r *reader) begin(e history.Event, s step) {
	r.open[attemptID{e.Proc, e.Call}] = len(r.all)
	r.all = append(r.all, porcupine.Operation{ClientId: s.attempt, Input: s, Output: either, Call: int64(e.Time), Return: math.MaxInt64})
}

func (r *reader) end(key attemptID, at time.Duration, o outcome) {
	i, ok := r.open[key]
	if !ok {
		return
	}
	delete(r.open, key)
	r.all[i].Output = o
	if o != either {
		r.all[i].Return = int64(at)
	}
}

// freed adds an end of the hold that was not reported, at some time after an
// event.
func (r *reader) freed(key attemptID, from history.Event) {
	r.begin(from, step{release: true, attempt: r.attempts[key]})
	delete(r.open, key)
}
