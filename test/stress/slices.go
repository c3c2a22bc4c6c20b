package stress

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-dsync/dsync/conformance"
)

const (
	sliceLength = 200             // operations
	sliceFor    = 5 * time.Second // of searching
)

// step is an operation on a lock: what a client did, and what came of it.
type step struct {
	release bool
	attempt int // whose hold it is about
}

// outcome of a step.
type outcome string

const (
	done    outcome = "ok"
	refused outcome = "refused"
	either  outcome = "?"
)

// free is the state of a lock that nobody holds. All others are the number of an attempt.
const free = 0

// mutex is the sequential model of a lock: what is to be explained by some order of the operations.
var mutex = porcupine.NondeterministicModel{
	Init: func() []any { return []any{free} },
	Step: func(state, input, output any) []any {
		held, s := state.(int), input.(step)
		var next []any
		if s.release {
			if held == s.attempt {
				next = append(next, free)
			}
			if output == either { // it has not happened yet, or the hold was over
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

// crossCheck has porcupine look for an order that explains what happened to each name before the first fault, refusals included, which
// the judge does not search for. A slice that cannot be explained fails the cell, and leaves a picture.
func (c *cell) crossCheck(events []conformance.Event) {
	for _, name := range c.names {
		operations := history(events, name)
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

// history is the first operations on a name, up to the first fault. What had not returned by then may have happened or not.
func history(events []conformance.Event, name string) []porcupine.Operation {
	type id struct {
		proc string
		call uint64
	}
	var all []porcupine.Operation
	attempts := map[id]int{} // to numbers, from 1
	called, granted := map[id]conformance.Event{}, map[id]conformance.Event{}
	open := map[id]int{} // to what has not returned, in all
	clients := map[string]int{}
	begin := func(e conformance.Event, s step) {
		key := fmt.Sprint(e.Proc, e.Call)
		if _, ok := clients[key]; !ok {
			clients[key] = len(clients)
		}
		open[id{e.Proc, e.Call}] = len(all)
		all = append(all, porcupine.Operation{ClientId: clients[key], Input: s, Output: either, Call: int64(e.Time), Return: math.MaxInt64})
	}
	end := func(e conformance.Event, o outcome) {
		i, ok := open[id{e.Proc, e.Call}]
		if !ok {
			return
		}
		delete(open, id{e.Proc, e.Call})
		all[i].Output = o
		if o != either {
			all[i].Return = int64(e.Time)
		}
	}
	for _, e := range events {
		if e.Kind == conformance.KindFaultOn || len(all) >= sliceLength {
			break
		}
		if e.Name != name {
			continue
		}
		key := id{e.Proc, e.Call}
		switch e.Kind {
		case conformance.KindCall:
			attempts[key], called[key] = len(attempts)+1, e
			begin(e, step{attempt: attempts[key]})
		case conformance.KindGrant:
			granted[key] = e
			end(e, done)
		case conformance.KindRefuse:
			end(e, refused)
		case conformance.KindFail: // it may have had the lock for a while
			end(e, either)
			begin(called[key], step{release: true, attempt: attempts[key]})
			delete(open, key)
		case conformance.KindRelease:
			begin(e, step{release: true, attempt: attempts[key]})
		case conformance.KindReleased:
			end(e, done)
		case conformance.KindNotReleased, conformance.KindLose: // it was over at some time since the grant
			end(e, either)
			begin(granted[key], step{release: true, attempt: attempts[key]})
			delete(open, key)
		}
	}
	return all
}
