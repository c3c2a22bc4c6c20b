package recipes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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

// processes returns clients of one backend.
func processes(t *testing.T, n int) (clients []*dsync.Client, drivers []*memory.Driver) {
	t.Helper()
	for i := range n {
		var c *dsync.Client
		var d *memory.Driver
		if i == 0 {
			c, d = dsynctest.New(t, nil)
		} else {
			c, d = dsynctest.Beside(t, drivers[0], nil)
		}
		clients, drivers = append(clients, c), append(drivers, d)
	}
	return clients, drivers
}

// table implements Results in memory.
type table struct {
	mu      sync.Mutex
	tokens  guard.Memory
	results map[string]string
}

func (s *table) Load(_ context.Context, key string) (string, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	result, ok := s.results[key]
	return result, ok, nil
}

func (s *table) Store(_ context.Context, key, result string, token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.tokens.Write(key, token); err != nil {
		return err
	}
	s.results[key] = result
	return nil
}

func (s *table) Enter(_ context.Context, key string, token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens.Write(key, token)
}

func TestIdempotentWorksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, _ := processes(t, 3)
		results := &table{results: map[string]string{}}
		var works atomic.Int32
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				got, err := Idempotent(t.Context(), clients[i%3], results, "pay/7", func(context.Context) (string, error) {
					time.Sleep(time.Second)
					return fmt.Sprintf("receipt %d", works.Add(1)), nil
				})
				if got != "receipt 1" || err != nil {
					t.Errorf("got %q, %v; want the first receipt", got, err)
				}
			})
		}
		wg.Wait()
		failed := errors.New("card refused")
		if _, err := Idempotent(t.Context(), clients[0], results, "pay/8", func(context.Context) (string, error) { return "", failed }); !errors.Is(err, failed) {
			t.Errorf("got %v, want %v", err, failed)
		}
		if _, ok, _ := results.Load(t.Context(), "pay/8"); ok {
			t.Error("a failure was stored as a result")
		}
	})
}

func TestAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, _ := processes(t, 3)
		var inside, most, runs atomic.Int32
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				err := AtMost(t.Context(), clients[i%3], "import", 4, func(context.Context) error {
					most.Store(max(most.Load(), inside.Add(1)))
					time.Sleep(time.Second)
					inside.Add(-1)
					runs.Add(1)
					return dsync.ErrLocked // of a lock that fn itself acquires
				})
				if !errors.Is(err, dsync.ErrLocked) {
					t.Errorf("got %v, want the error of fn", err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 4 || runs.Load() != 20 {
			t.Errorf("%d runs, at most %d at the same time; want 20 and 4", runs.Load(), most.Load())
		}
	})
}

func TestAtMost8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, _ := processes(t, 3)
		var inside, most, runs atomic.Int32
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				err := AtMost8(t.Context(), clients[i%3], "api/tenant", func(context.Context) error {
					most.Store(max(most.Load(), inside.Add(1)))
					time.Sleep(time.Second)
					inside.Add(-1)
					runs.Add(1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 8 || runs.Load() != 40 {
			t.Errorf("%d runs, at most %d at the same time; want 40 and 8", runs.Load(), most.Load())
		}
	})
}

func TestAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, _ := processes(t, 3)
		const apart = 300 * time.Millisecond // a hundred take half a minute
		for i := range 100 {
			if err := Allowed(t.Context(), clients[i%3], "mails"); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
			time.Sleep(apart)
		}
		for range 2 {
			if err := Allowed(t.Context(), clients[0], "mails"); !errors.Is(err, dsync.ErrLocked) {
				t.Errorf("call 101 in a minute: got %v, want ErrLocked", err)
			}
		}
		time.Sleep(time.Minute/2 + apart*3/2) // the first two are a minute ago
		for i := range 3 {
			if err := Allowed(t.Context(), clients[i], "mails"); errors.Is(err, dsync.ErrLocked) != (i == 2) {
				t.Errorf("call %d after a minute: got %v, want ErrLocked from the third call on", i, err)
			}
		}
	})
}

func TestLeadHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, drivers := processes(t, 2)
		leaders := make(chan int)
		lead := func(ctx context.Context, i int) <-chan error {
			done := make(chan error, 1)
			go func() {
				done <- Lead(ctx, clients[i], "leader", func(ctx context.Context) error {
					leaders <- i
					<-ctx.Done()
					return ctx.Err()
				})
			}()
			return done
		}
		first, terminate := context.WithCancel(t.Context())
		defer terminate()
		ended := lead(first, 0)
		if got := <-leaders; got != 0 {
			t.Fatalf("leader %d, want 0", got)
		}
		second, cancel := context.WithCancel(t.Context())
		defer cancel()
		other := lead(second, 1)
		synctest.Wait()
		began := time.Now()
		terminate()
		if got := <-leaders; got != 1 || time.Since(began) > 0 {
			t.Errorf("leader %d after %v, want 1 immediately", got, time.Since(began))
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}

		drivers[1].Cut() // the leader loses its lock, and leads again when the backend is there
		time.Sleep(time.Minute)
		drivers[1].Heal()
		if got := <-leaders; got != 1 {
			t.Errorf("leader %d, want 1", got)
		}
		cancel()
		if err := <-other; err != nil {
			t.Error(err)
		}
	})
}

func TestServeEndsInOrder(t *testing.T) {
	client, backend := dsynctest.New(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, terminate := context.WithCancel(t.Context())
	defer terminate()
	mux := http.NewServeMux()
	mux.Handle("GET /ready", Ready(client))
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		err := dsync.Do(r.Context(), client, "orders", func(ctx context.Context) error {
			terminate() // at work
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(50 * time.Millisecond): // the client would be closed by now if it were closed first
				return nil
			}
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, client, l, mux) }()
	url := "http://" + l.Addr().String()
	status := func(answer *http.Response, err error) int {
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	if got := status(http.Get(url + "/ready")); got != http.StatusOK {
		t.Errorf("ready: %d", got)
	}
	backend.Cut()
	if got := status(http.Get(url + "/ready")); got != http.StatusServiceUnavailable {
		t.Errorf("ready without the backend: %d, want 503", got)
	}
	backend.Heal()
	if got := status(http.Post(url+"/orders", "", nil)); got != http.StatusOK {
		t.Errorf("the request in progress: %d, want 200", got)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := client.TryLock(t.Context(), "orders"); !errors.Is(err, dsync.ErrClosed) {
		t.Errorf("TryLock: %v, want ErrClosed", err)
	}
}

func TestMigrateOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, _ := processes(t, 3)
		version := 1
		step := func(want int) func(context.Context) error {
			return func(context.Context) error {
				if version != want {
					t.Errorf("step %d at version %d", want, version)
				}
				version++
				return nil
			}
		}
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				err := Migrate(t.Context(), c, func(context.Context) (int, error) { return version, nil },
					[]func(context.Context) error{step(0), step(1), step(2)})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if version != 3 {
			t.Errorf("version %d, want 3", version)
		}
	})
}

// store is an object store with one object.
type store struct {
	mu      sync.Mutex
	version int // 0: there is no object
	token   string
	object  []byte
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	tag := fmt.Sprintf("%q", fmt.Sprint(s.version))
	switch match := r.Header.Get("If-Match"); {
	case r.Method == http.MethodPut && match != tag && (match != "" || r.Header.Get("If-None-Match") != "*" || s.version > 0):
		w.WriteHeader(http.StatusPreconditionFailed)
	case r.Method == http.MethodPut:
		s.version, s.token, s.object = s.version+1, r.Header.Get(tokenHeader), body
	case s.version == 0:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("ETag", tag)
		w.Header().Set(tokenHeader, s.token)
		w.Write(s.object)
	}
}

func TestUpdateObjectRefusesLateWriters(t *testing.T) {
	s := &store{}
	server := httptest.NewServer(s)
	defer server.Close()
	add := func(word string) func([]byte) []byte {
		return func(old []byte) []byte { return append(old, word...) }
	}
	update := func(token uint64, change func([]byte) []byte) error {
		return UpdateObject(t.Context(), server.URL, token, change)
	}
	for _, token := range []uint64{7, 7} {
		if err := update(token, add("a")); err != nil {
			t.Fatal(err)
		}
	}
	if err := update(6, add("late")); !errors.Is(err, guard.ErrStale) {
		t.Errorf("a late write: %v, want %v", err, guard.ErrStale)
	}

	// Another client writes after the object was read. The write of the holder
	// wins, and the late write is refused.
	once := func(token uint64, word string, then func([]byte) []byte) func([]byte) []byte {
		done := false
		return func(old []byte) []byte {
			if !done {
				done = true
				if err := update(token, add(word)); err != nil {
					t.Error(err)
				}
			}
			return then(old)
		}
	}
	if err := update(8, once(7, "b", add("c"))); err != nil {
		t.Error(err)
	}
	if err := update(8, once(9, "d", add("late"))); !errors.Is(err, guard.ErrStale) {
		t.Errorf("a write that another write overtook: %v, want %v", err, guard.ErrStale)
	}
	if string(s.object) != "aabcd" || s.token != "9" {
		t.Errorf("the object is %q with token %s, want aabcd with 9", s.object, s.token)
	}
}

func TestConsume(t *testing.T) {
	var tokens guard.Memory
	consume := func(key string, token uint64) (handled bool) {
		err := Consume(&tokens, Message{Key: key, Token: token}, func(Message) error {
			handled = true
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return handled
	}
	for _, step := range []struct {
		token uint64
		want  bool
	}{{5, true}, {5, true}, {7, true}, {5, false}, {7, true}} {
		if got := consume("orders/42", step.token); got != step.want {
			t.Errorf("token %d: %t, want %t", step.token, got, step.want)
		}
	}
	if !consume("orders/43", 1) {
		t.Error("keys share a token")
	}
	if err := Consume(&tokens, Message{Key: "orders/42"}, nil); !errors.Is(err, guard.ErrNoToken) {
		t.Errorf("a message without a token: %v, want %v", err, guard.ErrNoToken)
	}
}
