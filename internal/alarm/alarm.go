package dsync

import (
	"container/heap"

	"github.com/go-dsync/dsync/internal/linked"
)

// alarms are the times at which the watchdog looks at holds and views. Alarms of about the same time share a slot, and the heap is one of
// slots: to put the holds of a batch off to the next renewal, one after the other, is to append each to the same list. An alarm that is further
// away than the grain may come early by as much, and is then set anew: so those who set an alarm look at the time when it comes. An alarm is
// never late.
type alarms struct {
	grain moment
	heap  slots
	byAt  map[moment]*slot
}

// alarm is an entry of alarms.
type alarm struct {
	linked.Links[alarm]
	at   moment
	hold *hold
	view *Lease // nil if the alarm is for the hold
	slot *slot  // nil if the alarm is not set
}

// slot is the alarms of one time, which is that of the earliest, or a multiple of the grain before.
type slot struct {
	at    moment
	index int // in the heap
	in    *alarms
	all   linked.List[alarm, *alarm]
}

// set sets an alarm, which may be set for another time, or be one of other alarms.
func (q *alarms) set(a *alarm, now, at moment) {
	a.stop()
	a.at = at
	if at-now > q.grain {
		at -= at % q.grain
	}
	s := q.byAt[at]
	if s == nil {
		if q.byAt == nil {
			q.byAt = make(map[moment]*slot)
		}
		s = &slot{at: at, in: q}
		q.byAt[at] = s
		heap.Push(&q.heap, s)
	}
	a.slot = s
	s.all.Add(a)
}

// stop takes the alarm out. A slot at a multiple of the grain stays, for those who lock and unlock all the time.
func (a *alarm) stop() {
	s := a.slot
	if s == nil {
		return
	}
	a.slot = nil
	s.all.Remove(a)
	if s.all.Empty() && s.at%s.in.grain != 0 {
		s.drop()
	}
}

func (s *slot) drop() {
	heap.Remove(&s.in.heap, s.index)
	delete(s.in.byAt, s.at)
}

// next is the time of the earliest slot.
func (q *alarms) next() (at moment, ok bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].at, true
}

// take takes out the earliest slot, and returns its alarms.
func (q *alarms) take() []*alarm {
	s := q.heap[0]
	s.drop()
	all := s.all.Take()
	for _, a := range all {
		a.slot = nil
	}
	return all
}

// slots is a heap by time.
type slots []*slot

func (q slots) Len() int           { return len(q) }
func (q slots) Less(i, j int) bool { return q[i].at < q[j].at }

func (q slots) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *slots) Push(x any) {
	s := x.(*slot)
	s.index = len(*q)
	*q = append(*q, s)
}

func (q *slots) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	return s
}
