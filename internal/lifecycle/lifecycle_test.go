package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
)

func TestCallsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		if err := l.Enter(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := l.Enter(); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("Enter after Close: got %v, want ErrClosed", err)
		}
		if err := l.Close(); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("Close again: got %v, want ErrClosed", err)
		}
		if l.Open().Err() == nil || l.Context().Err() != nil {
			t.Errorf("after Close: the context of Open has %v, Context has %v, want only the first ended", l.Open().Err(), l.Context().Err())
		}
		time.AfterFunc(time.Second, l.EnterLate)
		time.AfterFunc(2*time.Second, l.Leave)
		time.AfterFunc(3*time.Second, l.Leave)
		begun := time.Now()
		if left := l.AwaitCalls(t.Context()); left != 0 {
			t.Errorf("got %d calls left, want none", left)
		}
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("AwaitCalls waited for %v, want 3s, until the last call ended", took)
		}
	})
}

func TestAwaitCallsEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		_, _ = l.Enter(), l.Enter()
		_ = l.Close()
		time.AfterFunc(time.Second, l.Leave)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if left := l.AwaitCalls(ctx); left != 1 {
			t.Errorf("got %d calls left, want 1", left)
		}
		l.Leave()
	})
}

func TestGoroutinesEndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		ended := false
		if !l.Go(func() {
			<-l.Context().Done()
			ended = true
		}) {
			t.Error("Go refused before End")
		}
		_ = l.Close()
		synctest.Wait()
		if ended {
			t.Error("Close ended a goroutine that cleans up")
		}
		if !l.Sleep(t.Context(), time.Minute) {
			t.Error("Sleep was cut short before End")
		}
		l.End()
		l.Wait()
		if !ended {
			t.Error("Wait did not wait")
		}
		if l.Go(func() {}) || l.Sleep(t.Context(), time.Hour) {
			t.Error("Go or Sleep continued after End")
		}
	})
}
