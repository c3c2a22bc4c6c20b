// Package linked provides a doubly linked list of values that contain their own
// links, so that membership in the list takes no memory.
package linked

import "iter"

// Links holds the neighbors of a T. Embed it in T. A T is in one List at a
// time.
type Links[T any] struct{ previous, next *T }

func (l *Links[T]) links() *Links[T] { return l }

// Element is a pointer to a type that embeds Links.
type Element[T any] interface {
	*T
	links() *Links[T]
}

// List keeps its elements in the order of Add. The zero value is empty.
type List[T any, P Element[T]] struct{ first, last *T }

// Add appends e, unless e is in the list.
func (l *List[T, P]) Add(e P) {
	if l.has(e) {
		return
	}
	if e.links().previous = l.last; l.last != nil {
		P(l.last).links().next = e
	} else {
		l.first = e
	}
	l.last = e
}

// Remove removes e, if e is in the list.
func (l *List[T, P]) Remove(e P) {
	if !l.has(e) {
		return
	}
	at := e.links()
	if at.previous != nil {
		P(at.previous).links().next = at.next
	} else {
		l.first = at.next
	}
	if at.next != nil {
		P(at.next).links().previous = at.previous
	} else {
		l.last = at.previous
	}
	*at = Links[T]{}
}

// has reports whether e is in the list. e must not be in another list.
func (l *List[T, P]) has(e P) bool { return e.links().previous != nil || l.first == e }

// Empty reports whether the list is empty.
func (l *List[T, P]) Empty() bool { return l.first == nil }

// First returns the element that has been in the list longest, or nil.
func (l *List[T, P]) First() P { return l.first }

// All yields all elements in order. The loop may remove the current element.
func (l *List[T, P]) All() iter.Seq[P] {
	return func(yield func(P) bool) {
		for e := l.first; e != nil; {
			next := P(e).links().next
			if !yield(e) {
				return
			}
			e = next
		}
	}
}

// Take empties the list and returns its elements.
func (l *List[T, P]) Take() (all []P) {
	for e := range l.All() {
		l.Remove(e)
		all = append(all, e)
	}
	return all
}
