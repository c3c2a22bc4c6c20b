// Package httplock provides HTTP handlers that serialize requests across all
// instances of a service, and that answer a repeated request with the stored
// response.
package httplock

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/go-dsync/dsync"
)

// statusClientClosedRequest is the status that proxies log if the client has
// left.
const statusClientClosedRequest = 499

// Serialize passes requests to next, only one at a time for each key. The
// context of the request ends when the lock is lost. dsync.LeaseFrom returns
// the lease, and next presents the lease's token with its writes.
//
// opts are the options of Locker.Lock. Without dsync.WaitAtMost a request waits
// until its client leaves. A request that does not get the lock is answered
// with 409 (Conflict) if another request holds it, or with 503 (Service
// Unavailable) and Retry-After if the backend does not answer. The reason for a
// 503 is logged to slog.Default.
func Serialize(l dsync.Locker, key func(*http.Request) string, next http.Handler, opts ...dsync.LockOption) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := dsync.Do(r.Context(), l, key(r), func(ctx context.Context) error {
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		}, opts...)
		if ran, _ := dsync.Ran(err); !ran {
			refuse(w, r, err)
		}
	})
}

// refuse answers a request for which the lock was not acquired.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case r.Context().Err() != nil:
		w.WriteHeader(statusClientClosedRequest)
	case errors.Is(err, dsync.ErrLocked):
		http.Error(w, "another request is already working on this", http.StatusConflict)
	default:
		unavailable(w, r, err)
	}
}

// unavailable answers with 503, and logs why, because the client does not learn
// it.
func unavailable(w http.ResponseWriter, r *http.Request, err error) {
	slog.WarnContext(r.Context(), "httplock: the answer is 503", "error", err)
	w.Header().Set("Retry-After", "1")
	http.Error(w, "try again", http.StatusServiceUnavailable)
}
