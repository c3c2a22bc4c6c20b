package httplock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/dsynctest"
	"github.com/go-dsync/dsync/guard"
)

// ask sends a request with a key to a handler.
func ask(ctx context.Context, h http.Handler, key, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/charges", strings.NewReader(body))
	if key != "" {
		r.Header.Set(Header, key)
	}
	h.ServeHTTP(w, r)
	return w
}

func TestSerialize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, backend := dsynctest.New(t, nil)
		var inside atomic.Int32
		h := Serialize(client, func(r *http.Request) string { return r.URL.Path }, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if inside.Add(1) > 1 {
				t.Error("two requests ran at the same time")
			}
			time.Sleep(time.Second)
			inside.Add(-1)
		}), dsync.WaitAtMost(1500*time.Millisecond))
		codes := make(chan int, 3)
		for range cap(codes) {
			go func() { codes <- ask(t.Context(), h, "", "").Code }()
		}
		got := []int{<-codes, <-codes, <-codes}
		slices.Sort(got) // two requests have their turn within 1.5 s
		if !slices.Equal(got, []int{http.StatusOK, http.StatusOK, http.StatusConflict}) {
			t.Errorf("got %v, want 200, 200 and 409", got)
		}

		lease, err := client.Lock(t.Context(), "/charges")
		if err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := ask(gone, h, "", "").Code; got != statusClientClosedRequest {
			t.Errorf("a client that leaves: %d, want 499", got)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		backend.Cut()
		var log bytes.Buffer
		defer slog.SetDefault(slog.Default())
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		w := ask(t.Context(), h, "", "")
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("without the backend: %d %v, want 503 and Retry-After", w.Code, w.Header())
		}
		if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "backend unavailable") {
			t.Errorf("without the backend: got the log %q, want the reason for the 503", log.String())
		}
	})
}

// memoryAnswers implements Answers in memory.
type memoryAnswers struct {
	mu     sync.Mutex
	tokens guard.Memory
	all    map[string]*Answer
	fail   error // of Store
}

func (m *memoryAnswers) Load(_ context.Context, key string) (*Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[key], nil
}

func (m *memoryAnswers) Enter(_ context.Context, key string, token uint64) error {
	return m.tokens.Write(key, token)
}

func (m *memoryAnswers) Store(_ context.Context, key string, a *Answer, token uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if err := m.tokens.Write(key, token); err != nil {
		return err
	}
	m.all[key] = a
	return nil
}

// service charges, and answers with the number of the charge.
type service struct {
	charges atomic.Int32
	status  int // of the answer; 0 means 201
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	time.Sleep(time.Second)
	w.Header().Set("Location", fmt.Sprintf("/charges/%d", s.charges.Add(1)))
	w.WriteHeader(max(s.status, http.StatusCreated))
	fmt.Fprintf(w, "charged %s", body)
}

func scope(*http.Request) string { return "account 7" }

func TestIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, backend := dsynctest.New(t, nil)
		second, _ := dsynctest.Beside(t, backend, nil)
		answers := &memoryAnswers{all: map[string]*Answer{}}
		s := new(service)
		handlers := []http.Handler{Idempotent(first, answers, scope, s), Idempotent(second, answers, scope, s)}
		check := func(w *httptest.ResponseRecorder, status int, location string) {
			t.Helper()
			if w.Code != status || w.Header().Get("Location") != location || location != "" && w.Body.String() != "charged 10" {
				t.Errorf("got %d %v %q, want %d and the location %q", w.Code, w.Header(), w.Body, status, location)
			}
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { check(ask(t.Context(), handlers[i%2], "key", "10"), http.StatusCreated, "/charges/1") })
		}
		wg.Wait()
		backend.Cut() // a stored answer needs no lock
		check(ask(t.Context(), handlers[0], "key", "10"), http.StatusCreated, "/charges/1")
		backend.Heal()
		check(ask(t.Context(), handlers[0], "key", "20"), http.StatusUnprocessableEntity, "")
		check(ask(t.Context(), handlers[0], strings.Repeat("k", maxKey+1), "10"), http.StatusBadRequest, "")
		check(ask(t.Context(), handlers[0], "large", strings.Repeat("x", maxBody+1)), http.StatusRequestEntityTooLarge, "")
		check(ask(t.Context(), handlers[0], "", "10"), http.StatusCreated, "/charges/2")
		check(ask(t.Context(), handlers[0], "", "10"), http.StatusCreated, "/charges/3")

		other := Idempotent(first, answers, func(*http.Request) string { return "account 8" }, s)
		check(ask(t.Context(), other, "key", "10"), http.StatusCreated, "/charges/4")

		s.status = http.StatusBadGateway // a status that is tried again
		check(ask(t.Context(), handlers[1], "fails", "10"), http.StatusBadGateway, "/charges/5")
		s.status = 0
		check(ask(t.Context(), handlers[1], "fails", "10"), http.StatusCreated, "/charges/6")

		answers.fail = guard.ErrStale
		check(ask(t.Context(), handlers[1], "late", "10"), http.StatusServiceUnavailable, "")
	})
}

// TestIdempotentWithoutItsUnlock loses the backend's response to the Unlock.
// The client still gets its answer.
func TestIdempotentWithoutItsUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, backend := dsynctest.New(t, nil)
		answers := &memoryAnswers{all: map[string]*Answer{}}
		h := Idempotent(client, answers, scope, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			backend.Inject(memory.Fault{Kind: memory.LoseAnswer})
			fmt.Fprint(w, "charged")
		}))
		if w := ask(t.Context(), h, "key", ""); w.Code != http.StatusOK || w.Body.String() != "charged" {
			t.Errorf("got %d %q, want 200 and the answer", w.Code, w.Body)
		}
		backend.Heal()
	})
}
