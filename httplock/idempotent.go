package httplock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/go-dsync/dsync"
)

// Header is the header with the key of a request, chosen by its client
// (draft-ietf-httpapi-idempotency-key-header).
const Header = "Idempotency-Key"

const (
	maxKey  = 255
	maxBody = 1 << 20 // of a request with a key
)

// Answer is a stored response.
type Answer struct {
	Request string // hash of the request's method, URL and body
	Status  int
	Header  http.Header
	Body    []byte
}

// Answers stores answers by key. [Table] implements it. Its methods may be
// called concurrently.
type Answers interface {
	// Load returns the answer, or nil if there is none.
	Load(ctx context.Context, key string) (*Answer, error)

	// Enter waits until no Store with a smaller token is pending, and makes
	// Store refuse smaller tokens from now on.
	Enter(ctx context.Context, key string, token uint64) error

	// Store fails with guard.ErrStale if Enter or Store has seen a larger
	// token.
	Store(ctx context.Context, key string, a *Answer, token uint64) error
}

// If the key of a request has a stored answer, Idempotent responds with that
// answer. Otherwise it passes requests to next, only one at a time for each
// key. A request without the header is passed to next unchanged. The backend of
// l must issue tokens.
//
// scope returns the owner of the key, such as the id of the account, because
// clients must not get each other's answers. opts are the options of
// Locker.Lock, as in [Serialize].
//
// The answer from next is sent after it has been stored. Answers with status
// 409, 425, 429, or 500 and above are not stored, so that the client can try
// again. A request whose key was used for a different request is answered with
// 422, and a key above 255 bytes with 400.
//
// If next began and its answer could not be stored, the answer is 503, and a
// repeated request runs next again, even while the first, delayed next is still
// running. So next must store its answer in the transaction of its writes, with
// [Table.StoreTx]. Otherwise these writes may be made twice.
func Idempotent(l dsync.Locker, answers Answers, scope func(*http.Request) string, next http.Handler, opts ...dsync.LockOption) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get(Header)
		switch {
		case key == "":
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callKey{}, (*call)(nil))))
			return
		case len(key) > maxKey:
			http.Error(w, "header "+Header+" is too long", http.StatusBadRequest)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
				http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
			} else {
				http.Error(w, "the request is incomplete", http.StatusBadRequest)
			}
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		c := &call{answers: answers, key: nameOf(scope(r), key), request: hashOf(r, body), next: next}
		answer, err := c.answer(l, r, opts)
		switch ran, _ := dsync.Ran(err); {
		case answer == nil && !ran:
			refuse(w, r, err)
		case answer == nil:
			unavailable(w, r, err)
		case answer.Request != c.request:
			http.Error(w, "the key was used for another request", http.StatusUnprocessableEntity)
		default:
			answer.send(w)
		}
	})
}

// nameOf returns the lock name for a key in a scope. Unlike names of locks,
// scopes and keys can have any length and contain any bytes.
func nameOf(scope, key string) string {
	hash := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(scope), scope, key))
	return "idempotency/" + hex.EncodeToString(hash[:])
}

func hashOf(r *http.Request, body []byte) string {
	hash := sha256.Sum256(append(fmt.Appendf(nil, "%s %q ", r.Method, r.URL.RequestURI()), body...))
	return hex.EncodeToString(hash[:])
}

// call is a request with a key.
type call struct {
	answers      Answers
	key, request string
	next         http.Handler
	token        uint64      // of the lock of the key; next may hold other locks
	stored       atomic.Bool // next has called StoreTx; its transaction may have failed
}

// callKey is the key of a *call in a context. The call is nil for a request
// without a key.
type callKey struct{}

// answer returns the answer to the request, or nil if there is none.
func (c *call) answer(l dsync.Locker, r *http.Request, opts []dsync.LockOption) (a *Answer, err error) {
	if a, _ = c.answers.Load(r.Context(), c.key); a != nil { // an error will recur under the lock
		return a, nil // most repeated requests end here, without a lock
	}
	err = dsync.Do(r.Context(), l, c.key, func(ctx context.Context) (err error) {
		c.token = dsync.LeaseFrom(ctx).Token()
		if err = c.answers.Enter(ctx, c.key, c.token); err != nil {
			return err
		}
		if a, err = c.answers.Load(ctx, c.key); a != nil || err != nil {
			return err
		}
		w := recorder{header: http.Header{}}
		c.next.ServeHTTP(&w, r.WithContext(context.WithValue(ctx, callKey{}, c)))
		if c.stored.Load() {
			// The request's own context, because a lost lock does not matter here.
			if a, err = c.answers.Load(r.Context(), c.key); a != nil || err != nil {
				return err
			}
		}
		done := w.answer(c.request)
		if !lasting(done.Status) {
			a = done
			return nil
		}
		if err = c.answers.Store(ctx, c.key, done, c.token); err == nil {
			a = done
		}
		return err
	}, opts...)
	return a, err
}

// lasting reports whether an answer with this status is stored.
func lasting(status int) bool {
	switch status {
	case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

func (a *Answer) send(w http.ResponseWriter) {
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // fails if the client has left; the client can repeat the request
}

// recorder is a ResponseWriter in memory.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
	sent   http.Header // header as it was at WriteHeader
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func (w *recorder) answer(request string) *Answer {
	w.WriteHeader(http.StatusOK)
	return &Answer{Request: request, Status: w.status, Header: w.sent, Body: w.body.Bytes()}
}
