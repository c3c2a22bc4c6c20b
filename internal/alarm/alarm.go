// Package alarm provides a queue of times that is cheap if many times are close
// together.
package alarm

import (
	"container/heap"

	"github.com/go-dsync/dsync/internal/clock"
	"github.com/go-dsync/dsync/internal/linked"
)

// Queue holds the alarms that are set. Alarms for about the same time share a
// slot, and the heap consists of slots. Resetting the alarms of a batch, one
// after another, only appends them to the same list. An alarm that is further
// away than Grain may come early by up to Grain, so the code that takes it must
// check the time. An alarm is never late. Calls must not be concurrent.
type Queue[T any] struct {
	Grain clock.Moment
	heap  slots[T]
	byAt  map[clock.Moment]*slot[T]
}

// Alarm is set in one Queue at a time.
type Alarm[T any] struct {
	linked.Links[Alarm[T]]
	Of   T // the subject of the alarm
	at   clock.Moment
	slot *slot[T] // nil if the alarm is not set
}

// slot holds the alarms that share one time. This is the time of the earliest
// of them, or a multiple of the grain before it.
type slot[T any] struct {
	at    clock.Moment
	index int // in the heap
	in    *Queue[T]
	all   linked.List[Alarm[T], *Alarm[T]]
}

// At returns the time that the alarm was last set for.
func (a *Alarm[T]) At() clock.Moment { return a.at }

// Set sets an alarm and returns the time at which the alarm comes. The alarm
// may already be set for another time, or in another Queue.
func (q *Queue[T]) Set(a *Alarm[T], now, at clock.Moment) clock.Moment {
	a.Stop()
	a.at = at
	if at-now > q.Grain {
		at -= at % q.Grain
	}
	s := q.byAt[at]
	if s == nil {
		if q.byAt == nil {
			q.byAt = make(map[clock.Moment]*slot[T])
		}
		s = &slot[T]{at: at, in: q}
		q.byAt[at] = s
		heap.Push(&q.heap, s)
	}
	a.slot = s
	s.all.Add(a)
	return at
}

// Stop removes the alarm from its Queue, if it is set. A slot at a multiple of
// the grain remains, because callers that constantly lock and unlock will use
// it again.
func (a *Alarm[T]) Stop() {
	s := a.slot
	if s == nil {
		return
	}
	a.slot = nil
	s.all.Remove(a)
	if s.all.Empty() && s.at%s.in.Grain != 0 {
		s.drop()
	}
}

func (s *slot[T]) drop() {
	heap.Remove(&s.in.heap, s.index)
	delete(s.in.byAt, s.at)
}

// Next returns the time of the earliest slot.
func (q *Queue[T]) Next() (at clock.Moment, ok bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].at, true
}

// Take removes the alarms of the earliest slot from the Queue and returns them.
func (q *Queue[T]) Take() []*Alarm[T] {
	s := q.heap[0]
	s.drop()
	all := s.all.Take()
	for _, a := range all {
		a.slot = nil
	}
	return all
}

// slots is a heap by time.
type slots[T any] []*slot[T]

func (q slots[T]) Len() int           { return len(q) }
func (q slots[T]) Less(i, j int) bool { return q[i].at < q[j].at }

func (q slots[T]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *slots[T]) Push(x any) {
	s := x.(*slot[T])
	s.index = len(*q)
	*q = append(*q, s)
}

func (q *slots[T]) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	return s
}
