package redisson

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestWhoWaitsToWriteKeepsReadersOut(t *testing.T) {
	s := testenv.Redis(t)
	a, b, c := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	first := acquire(t, a, read("x"))
	w := wait(t, b, write("x"))
	refusedNow(t, c, driver.Read, "x")
	if got := leftOf(s, "dsync_intent:{x}"); got <= 0 || got > 6*time.Second {
		t.Errorf("TTL of the intent: got %v, want up to 6s", got)
	}
	again := acquire(t, a, first.request) // the request was sent twice
	r := wait(t, c, read("x"))
	release(t, again)
	l := w.granted(t)
	if n := s.Do("EXISTS", "dsync_intent:{x}"); n != int64(0) {
		t.Error("the intent is left when the writer holds the lock")
	}
	release(t, l)
	release(t, r.granted(t))
	refuser := acquire(t, a, read("x"))
	refusedNow(t, b, driver.Write, "x") // it does not wait, so it blocks no reader
	release(t, acquire(t, c, inMode(driver.Read, noWait("x"))))
	release(t, refuser)
	wantNoKeys(t, s)
}

func TestWhoGivesUpToWriteKeepsNobodyOut(t *testing.T) {
	s := testenv.Redis(t)
	a, b, c := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	for what, end := range map[string]func(w *waiter){
		"canceled": func(w *waiter) { w.cancel() },
		"closed":   func(*waiter) { go b.Close(t.Context()) },
	} {
		l := acquire(t, a, read("x"))
		w := wait(t, b, write("x"))
		r := wait(t, c, read("x"))
		settled(t, c)
		start := time.Now()
		end(w)
		next := r.granted(t)
		if took := time.Since(start); took > backstop/2 {
			t.Errorf("%s: the reader was granted after %v", what, took)
		}
		if <-w.done; !errors.Is(w.err, driver.ErrLocked) && !errors.Is(w.err, driver.ErrClosed) || errors.Is(w.err, driver.ErrUnknown) {
			t.Errorf("%s: Acquire of the writer: got %v", what, w.err)
		}
		release(t, next)
		release(t, l)
		wantNoKeys(t, s)
		b = openURL(t, "redisson://%s", s.Addr)
	}
}

// TestWritersIntendTogether: one of two waiting writers gives up, and the other
// one continues to keep readers out.
func TestWritersIntendTogether(t *testing.T) {
	s := testenv.Redis(t)
	a, b, c := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s", s.Addr)
	l := acquire(t, a, read("x"))
	stays, leaves := wait(t, b, write("x")), wait(t, c, write("x"))
	leaves.cancel()
	<-leaves.done
	refusedNow(t, a, driver.Read, "x")
	release(t, l)
	release(t, stays.granted(t))
	wantNoKeys(t, s)
}

// TestWriterAmongEndlessReaders checks that readers whose holds overlap cannot
// starve a writer. No reader is granted the name between the refusal of the
// writer and its grant.
func TestWriterAmongEndlessReaders(t *testing.T) {
	s := testenv.Redis(t)
	const readers = 4
	var stop atomic.Bool
	var waits, overtook atomic.Int64 // the number of the waiting writer, or 0; new readers that were granted the name in the meantime
	done := make(chan struct{})
	go func() { // ends when stop is set
		defer close(done)
		parallel(readers, func(int) {
			d := openURL(t, "redisson://%s", s.Addr)
			held := acquire(t, d, read("x"))
			for !stop.Load() {
				time.Sleep(2 * time.Millisecond)
				writer := waits.Load()
				next, err := d.Acquire(t.Context(), inMode(driver.Read, noWait("x")))
				if err == nil && writer > 0 && waits.Load() == writer {
					overtook.Add(1)
				}
				release(t, held)
				if err != nil { // there is a waiting writer
					next = acquire(t, d, read("x"))
				}
				held = next.(*lease)
			}
			release(t, held)
		})
	}()
	d := openURL(t, "redisson://%s", s.Addr)
	waited := 0
	for i := range int64(20) {
		w := begin(d, write("x"))
		select {
		case <-w.events.waiting:
			waited++
			waits.Store(i + 1)
		case <-w.done: // all readers were waiting for the previous writer
		}
		l := w.granted(t)
		waits.Store(0)
		release(t, l)
	}
	stop.Store(true)
	<-done
	if n := overtook.Load(); n > 0 || waited == 0 {
		t.Errorf("%d later readers held the name before a writer; %d writers waited", n, waited)
	}
	wantNoKeys(t, s)
}
