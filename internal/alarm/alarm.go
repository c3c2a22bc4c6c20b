// Package alarm has a queue of times, cheap for many that lie close together.
package alarm

import (
	"container/heap"

	"github.com/go-dsync/dsync/internal/clock"
	"github.com/go-dsync/dsync/internal/linked"
)

// Queue has the alarms that are set. Alarms of about the same time share a
// slot, and the heap is one of slots: to set the alarms of a batch anew, one
// after the other, is to append each to the same list. An alarm that is further
// away than Grain may come early by as much, so whoever takes it looks at the
// time. An alarm is never late. Calls must not be concurrent.
type Queue[T any] struct {
	Grain clock.Moment
	heap  slots[T]
	byAt  map[clock.Moment]*slot[T]
}

// Alarm is set in one Queue at a time.
type Alarm[T any] struct {
	linked.Links[Alarm[T]]
	Of   T // what the alarm is for
	at   clock.Moment
	slot *slot[T] // nil if the alarm is not set
}

// slot is the alarms of one time, which is that of the earliest, or a multiple
// of the grain before.
type slot[T any] struct {
	at    clock.Moment
	index int // in the heap
	in    *Queue[T]
	all   linked.List[Alarm[T], *Alarm[T]]
}

// At returns the time for which the alarm was set last.
func (a *Alarm[T]) At() clock.Moment { return a.at }

// Set sets an alarm, which may be set for another time, or in another Queue,
// and returns when the alarm comes.
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

// Stop takes the alarm out of its Queue, if it is set. A slot at a multiple of
// the grain stays, for those who lock and unlock all the time.
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

// Take takes the alarms of the earliest slot out of the Queue.
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
