package guard_test

import (
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/guard"
)

// admission is a call of Write or Read, and the error that it gets.
type admission struct {
	name  string
	token uint64
	read  bool
	want  error
}

// admissions are calls one after the other, for every guard.
var admissions = []admission{
	{name: "a", token: 1, read: true},
	{name: "a", token: 5},
	{name: "a", token: 5},
	{name: "a", token: 4, want: guard.ErrStale},
	{name: "a", token: 4, read: true, want: guard.ErrStale},
	{name: "a", token: 5, read: true},
	{name: "b", token: 3},
	{name: "a", token: 9, read: true},
	{name: "a", token: 8, read: true},
	{name: "a", token: 7},
	{name: "a", token: 5, want: guard.ErrStale},
	{name: "a", token: 0, want: guard.ErrNoToken},
	{name: "a", token: 0, read: true, want: guard.ErrNoToken},
	{name: "a", token: math.MaxInt64},
	{name: "a", token: 8, want: guard.ErrStale},
	{name: `o'k\"; --`, token: 2},
	{name: `o'k\"; --`, token: 1, want: guard.ErrStale},
}

// admit runs the admissions on a guard.
func admit(t *testing.T, write, read func(name string, token uint64) error) {
	t.Helper()
	for i, a := range admissions {
		call := write
		if a.read {
			call = read
		}
		if err := call(a.name, a.token); !errors.Is(err, a.want) || a.want == nil && err != nil {
			t.Errorf("call %d, %+v: got error %v", i, a, err)
		}
	}
	if err := write("a", math.MaxInt64+1); err == nil || !strings.Contains(err.Error(), "larger than a bigint") {
		t.Errorf("a token that no database keeps: got error %v", err)
	}
}

func TestMemory(t *testing.T) {
	var m guard.Memory
	admit(t, m.Write, m.Read)
}

func TestHandler(t *testing.T) {
	var m guard.Memory
	broken := false
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	server := httptest.NewServer(guard.Handler(next, func(r *http.Request, token uint64) error {
		if broken {
			return errors.New("password123")
		}
		return m.Write(r.URL.Path, token)
	}))
	defer server.Close()
	ask := func(edit func(*http.Request)) (status int, text string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/accounts/7", nil)
		if err != nil {
			t.Fatal(err)
		}
		edit(r)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	with := func(token uint64) func(*http.Request) { return func(r *http.Request) { guard.SetToken(r, token) } }
	for _, test := range []struct {
		what   string
		edit   func(*http.Request)
		status int
	}{
		{"no token", func(*http.Request) {}, http.StatusPreconditionRequired},
		{"malformed", func(r *http.Request) { r.Header.Set(guard.Header, "-1") }, http.StatusBadRequest},
		{"first", with(7), http.StatusNoContent},
		{"again", with(7), http.StatusNoContent},
		{"late", with(6), http.StatusPreconditionFailed},
		{"of a backend without tokens", with(0), http.StatusPreconditionFailed},
		{"next", with(8), http.StatusNoContent},
	} {
		if status, text := ask(test.edit); status != test.status {
			t.Errorf("%s: got status %d (%s), want %d", test.what, status, text, test.status)
		}
	}
	broken = true
	if status, text := ask(with(9)); status != http.StatusInternalServerError || strings.Contains(text, "password123") {
		t.Errorf("a check that fails: got status %d, %q", status, text)
	}
}
