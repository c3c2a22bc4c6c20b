package guard_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/guard"
)

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
		{"from a backend without tokens", with(0), http.StatusPreconditionFailed},
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
