package guard

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// Header is the header of a request with the fencing token of its sender, as a
// decimal number.
const Header = "Dsync-Token"

// SetToken puts the token into a request's header.
func SetToken(r *http.Request, token uint64) {
	r.Header.Set(Header, strconv.FormatUint(token, 10))
}

// Token returns the fencing token in a request's header. It returns an error
// that matches ErrNoToken if there is none.
func Token(r *http.Request) (uint64, error) {
	text := r.Header.Get(Header)
	if text == "" {
		return 0, fmt.Errorf("%w: header %s is missing", ErrNoToken, Header)
	}
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errors.New("guard: header " + Header + " is not a decimal number")
	}
	return token, nil
}

// Handler passes requests whose token passes check to next. It answers a
// request without a token with 428 (Precondition Required), a request with a
// malformed token with 400, and a request that check refuses with ErrStale or
// ErrNoToken with 412 (Precondition Failed). Any other error of check is a
// fault of the service, and is answered with 500, without its text.
//
//	var tokens guard.Memory
//	http.Handle("/accounts/{id}", guard.Handler(accounts, func(r *http.Request, token uint64) error {
//		return tokens.Write("accounts/"+r.PathValue("id"), token)
//	}))
//
// The pattern has no method, because a client also sends its token with the GET
// on which its PUT depends.
//
// The check ends before next begins. A request that was admitted and then
// paused in next may write after a later holder has read, and the later holder
// then writes over it. If that matters, next must present the token itself,
// which [Token] returns: with [SQL.Write] in the transaction that reads and
// writes, or with [Memory.Write] under the mutex that protects the data. A GET
// does the same: before it reads for a holder that intends to write, it calls
// Write rather than Read.
func Handler(next http.Handler, check func(r *http.Request, token uint64) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := Token(r)
		switch {
		case errors.Is(err, ErrNoToken):
			http.Error(w, "header "+Header+" is missing", http.StatusPreconditionRequired)
			return
		case err != nil:
			http.Error(w, "header "+Header+" is not a decimal number", http.StatusBadRequest)
			return
		}
		switch err := check(r, token); {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.Is(err, ErrStale), errors.Is(err, ErrNoToken):
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		default:
			http.Error(w, "the token cannot be checked", http.StatusInternalServerError)
		}
	})
}
