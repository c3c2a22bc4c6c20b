package linked

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type item struct {
	Links[item]
	number int
}

// TestList compares a list with a slice, over random steps.
func TestList(t *testing.T) {
	const items, steps = 6, 20_000
	r := rand.New(rand.NewPCG(1, 2))
	var all [items]item
	for i := range all {
		all[i].number = i
	}
	var l List[item, *item]
	var want []*item
	for step := range steps {
		e := &all[r.IntN(items)]
		switch in := slices.Contains(want, e); r.IntN(40) {
		case 0:
			if got := l.Take(); !slices.Equal(got, want) {
				t.Fatalf("step %d: took %v, want %v", step, numbers(got), numbers(want))
			}
			want = nil
		case 1: // all even ones, during the iteration
			for e := range l.All() {
				if e.number%2 == 0 {
					l.Remove(e)
				}
			}
			want = slices.DeleteFunc(want, func(e *item) bool { return e.number%2 == 0 })
		default:
			if r.IntN(2) == 0 {
				l.Add(e)
				if !in {
					want = append(want, e)
				}
			} else {
				l.Remove(e)
				want = slices.DeleteFunc(want, func(other *item) bool { return other == e })
			}
		}
		if got := slices.Collect(l.All()); !slices.Equal(got, want) || l.Empty() != (len(want) == 0) || backwards(&l) != len(want) {
			t.Fatalf("step %d: got %v, empty %t, %d backwards; want %v", step, numbers(got), l.Empty(), backwards(&l), numbers(want))
		}
	}
}

func numbers(items []*item) (all []int) {
	for _, e := range items {
		all = append(all, e.number)
	}
	return all
}

// backwards counts the elements from the end.
func backwards(l *List[item, *item]) (n int) {
	for e := l.last; e != nil; e = e.previous {
		n++
	}
	return n
}

func TestListTakesNoMemory(t *testing.T) {
	var l List[item, *item]
	e := new(item)
	if n := testing.AllocsPerRun(100, func() { l.Add(e); l.Remove(e) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
