package redisson

import (
	"fmt"
	"sync"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestMarkedCostsOneRequestOnce locks names, some of which are marked, by one
// request each and many together. After the first query for marks, grants
// report them.
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

// TestMarkedLeavesForeignLocksAlone queries names that other programs hold.
// Their remaining times must not be mistaken for grants.
func TestMarkedLeavesForeignLocksAlone(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, d, request("x"))
	if _, err := d.Marked(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if err := d.Mark(t.Context(), l, 5); err != nil {
		t.Fatal(err)
	}
	release(t, l)
	for _, left := range []string{"", "1000000", "3900000000000", "3999999999999", "4000000000000", "5000000000001", "1770000000000000"} {
		s.Do("HSET", "x", "a thread of Java", "1")
		if left != "" {
			s.Do("PEXPIRE", "x", left)
		}
		_, err := d.Acquire(t.Context(), noWait("x"))
		drivertest.WantErr(t, "a lock for "+left+" ms", err, driver.ErrLocked)
		s.Do("DEL", "x")
	}
	l = acquire(t, d, request("x"))
	if marked, err := d.Marked(t.Context(), l); !marked || err != nil {
		t.Errorf("Marked: got %t, %v, want true", marked, err)
	}
}
