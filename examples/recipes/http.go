// Package recipes has the code of docs/recipes.md, with a test for each recipe. It is there to be copied.
package recipes

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-dsync/dsync"
)

// Serialize lets one request for a key at a time through to next, over all processes.
func Serialize(l dsync.Locker, key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran := false
		err := dsync.Do(r.Context(), l, key(r), func(ctx context.Context) error {
			ran = true
			next.ServeHTTP(w, r.WithContext(ctx)) // whose context ends when the lock is lost
			return nil
		}, dsync.WaitAtMost(2*time.Second))
		switch {
		case ran: // and next has answered, whatever became of the lock meanwhile
		case r.Context().Err() != nil: // the client has left: 499, as proxies call it
			w.WriteHeader(499)
		case errors.Is(err, dsync.ErrLocked):
			http.Error(w, "another request works on this", http.StatusConflict)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	})
}
