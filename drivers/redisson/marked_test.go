package redisson

import (
	"fmt"
	"sync"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestMarkedCostsOneRequestOnce locks names of which some are marked, by one request each and many together: once somebody wanted to know
// of marks, grants say so.
func TestMarkedCostsOneRequestOnce(t *testing.T) {
	s := testenv.Redis(t)
	for _, fence := range []string{"own", "redisson"} {
		d := openURL(t, "redisson://%s?fence=%s", s.Addr, fence)
		name := func(i int) string { return fmt.Sprint(fence, i) }
		for i := range 64 {
			l := acquire(t, d, request(name(i)))
			if marked, err := d.Marked(t.Context(), l); marked || err != nil {
				t.Fatalf("Marked: got %t, %v, want false", marked, err)
			}
			if i%3 == 0 {
				if err := d.Mark(t.Context(), l, 5); err != nil {
					t.Fatal(err)
				}
			}
			release(t, l)
		}
		before := s.Commands()["evalsha"]
		check := func(i int) {
			r := request(name(i))
			r.Events.(*events).tokens = 1 + i%2
			l, err := d.Acquire(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			if marked, err := d.Marked(t.Context(), l); marked != (i%3 == 0) || err != nil {
				t.Errorf("%s: Marked: got %t, %v, want %t", r.Name, marked, err, i%3 == 0)
			}
			if first, n := l.Tokens(); first == 0 || n < 1 || n > 1+i%2 {
				t.Errorf("%s: got %d tokens from %d", r.Name, n, first)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for i := range 64 {
			check(i)
		}
		if got, want := s.Commands()["evalsha"]-before, int64(128); got != want {
			t.Errorf("%s: got %d requests for 64 locks one after the other, want %d", fence, got, want)
		}
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() { check(i) })
		}
		all.Wait()
	}
}
