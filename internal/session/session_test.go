package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/lifecycle"
)

const ttl = time.Minute

// member is a session without a server. Tests call its methods in fake time.
type member struct {
	Frame
	starting <-chan struct{} // if not nil, Start waits for it
	failed   error           // of Start
	lasts    time.Duration
	dies     atomic.Bool // in Tend
	now      func() int64

	mu    sync.Mutex
	calls []string
}

func (m *member) note(call string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, call)
}

func (m *member) noted() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

func (m *member) Start() error {
	if m.starting != nil {
		<-m.starting
	}
	m.End.Begin(m.now() + int64(m.lasts))
	return m.failed
}

func (m *member) Tend() time.Duration {
	if m.dies.Load() {
		m.note("tended")
		m.Die(driver.ErrSessionEnded)
		m.Look() // as if its users left immediately
		return 0
	}
	return time.Duration(m.End.At() - m.now())
}

func (m *member) Lose(cause error) {
	select {
	case <-m.Over():
		m.note("late")
	default:
	}
	if cause == nil {
		m.note("closed")
	} else {
		m.note("lost")
	}
}

func (m *member) Bury() { m.note("buried") }

// inPool calls f with a Pool in fake time and ends the Pool as a driver does.
func inPool(t *testing.T, policy Policy, made func(m *member), f func(t *testing.T, p *Pool[*member])) {
	synctest.Test(t, func(t *testing.T) {
		life, begun := lifecycle.New(), time.Now()
		now := func() int64 { return int64(time.Since(begun)) }
		p := NewPool(life, now, func(time.Duration) *member {
			m := &member{lasts: time.Hour, now: now}
			if made != nil {
				made(m)
			}
			return m
		})
		p.Policy = policy
		f(t, p)
		_ = life.Close() // perhaps once more
		for _, m := range p.All() {
			m.Die(nil)
			<-m.Buried()
		}
		life.End()
		life.Wait()
	})
}

func board(t *testing.T, p *Pool[*member], load int) *member {
	t.Helper()
	m, err := p.Board(t.Context(), ttl, load)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestUsersShareASession(t *testing.T) {
	inPool(t, Policy{Idle: time.Minute}, nil, func(t *testing.T, p *Pool[*member]) {
		a, b := board(t, p, 0), board(t, p, 0)
		other, err := p.Board(t.Context(), 2*ttl, 0)
		if err != nil || a != b || a == other {
			t.Fatalf("got %p, %p and %p, %v, want one session for each TTL", a, b, other, err)
		}
		a.Retire()
		if c := board(t, p, 0); c == a {
			t.Error("a retired session accepts users")
		}
		a.Leave(0)
		synctest.Wait()
		if a.IsDead() {
			t.Error("a retired session died before its last user left")
		}
		a.Leave(0)
		<-a.Buried()
		if got := a.noted(); !slices.Equal(got, []string{"lost", "buried"}) {
			t.Errorf("calls: got %q, want Lose before Over, and then Bury", got)
		}
	})
}

func TestLoad(t *testing.T) {
	inPool(t, Policy{Idle: time.Minute, MaxLoad: 10}, nil, func(t *testing.T, p *Pool[*member]) {
		big := board(t, p, 100) // a session without load has room for any user
		a, b := board(t, p, 6), board(t, p, 4)
		if a == big || a != b {
			t.Errorf("got %p and %p, and %p for the load that is too large; want one session for the first two", a, b, big)
		}
		a.Leave(4)
		a.AddLoad(4)
		if c := board(t, p, 1); c == a {
			t.Error("the load that a user left behind does not count")
		}
	})
}

func TestIdleSessionsEnd(t *testing.T) {
	inPool(t, Policy{Idle: time.Minute, Usual: ttl, MaxLoad: 1}, nil, func(t *testing.T, p *Pool[*member]) {
		usual, second := board(t, p, 1), board(t, p, 1)
		usual.Leave(1)
		second.Leave(1)
		time.Sleep(2 * time.Minute)
		usual.Look()
		second.Look()
		synctest.Wait()
		if usual.IsDead() || !second.IsDead() {
			t.Errorf("dead: the usual session %t, another session %t, want false and true", usual.IsDead(), second.IsDead())
		}
	})
}

func TestSessionWhoseEndHasPassed(t *testing.T) {
	inPool(t, Policy{Idle: time.Hour}, nil, func(t *testing.T, p *Pool[*member]) {
		m := board(t, p, 0)
		time.Sleep(time.Hour)
		if next := board(t, p, 0); next == m {
			t.Error("boarded a session whose end has passed")
		}
		<-m.Over()
		m.Die(nil) // once only
		<-m.Buried()
		if got := m.noted(); !slices.Equal(got, []string{"lost", "buried"}) {
			t.Errorf("calls: got %q", got)
		}
	})
}

func TestSessionThatDiesInTend(t *testing.T) {
	inPool(t, Policy{Idle: time.Hour}, nil, func(t *testing.T, p *Pool[*member]) {
		for range 20 {
			m := board(t, p, 0)
			m.dies.Store(true)
			m.Look()
			<-m.Buried()
			if got := m.noted(); !slices.Equal(got, []string{"tended", "lost", "buried"}) {
				t.Errorf("calls: got %q, want Tend once", got)
			}
		}
	})
}

func TestStartThatFails(t *testing.T) {
	failed := errors.New("no server")
	inPool(t, Policy{}, func(m *member) { m.failed = failed }, func(t *testing.T, p *Pool[*member]) {
		if _, err := p.Board(t.Context(), ttl, 0); err != failed {
			t.Errorf("got %v, want %v", err, failed)
		}
		synctest.Wait()
		if left := p.All(); len(left) > 0 {
			t.Errorf("%d sessions remain", len(left))
		}
	})
}

func TestBoardEndsWithItsContextAndTheDriver(t *testing.T) {
	var starting chan struct{}
	inPool(t, Policy{Idle: time.Hour}, func(m *member) { m.starting = starting }, func(t *testing.T, p *Pool[*member]) {
		starting = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m, err := p.Board(ctx, ttl, 0)
		if m == nil || err != context.DeadlineExceeded {
			t.Errorf("got %v, %v, want the session and the error of the context", m, err)
		}
		closed := make(chan error)
		go func() {
			_, err := p.Board(t.Context(), ttl, 0)
			closed <- err
		}()
		synctest.Wait()
		p.life.Close()
		if err := <-closed; err != driver.ErrClosed {
			t.Errorf("got %v, want %v", err, driver.ErrClosed)
		}
		if _, err := p.Board(t.Context(), 2*ttl, 0); err != driver.ErrClosed {
			t.Errorf("after Close: got %v, want %v", err, driver.ErrClosed)
		}
		close(starting)
	})
}

func TestEndNeverRevives(t *testing.T) {
	var e End
	if e.Passed(1 << 40) {
		t.Error("an end that is not known has passed")
	}
	e.Begin(101)
	for _, step := range []struct {
		now, to int64
		ok      bool
		at      int64
	}{{50, 90, true, 100}, {99, 201, true, 200}, {200, 300, false, 200}} {
		if ok := e.Extend(step.now, step.to); ok != step.ok || e.At() != step.at {
			t.Errorf("Extend(%d, %d): got %t and %d, want %t and %d", step.now, step.to, ok, e.At(), step.ok, step.at)
		}
	}
	if e.Passed(199) || !e.Passed(200) || !e.Passed(199) || e.Extend(100, 500) || e.At() != 200 {
		t.Error("an end that was seen to have passed moved")
	}
}
