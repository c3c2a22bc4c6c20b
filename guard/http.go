package guard

import (
	"errors"
	"net/http"
	"strconv"
)

// Header is the header of a request with the fencing token of its sender, as a decimal number.
const Header = "Dsync-Token"

// SetToken puts the token into a request's header.
func SetToken(r *http.Request, token uint64) {
	r.Header.Set(Header, strconv.FormatUint(token, 10))
}

// Handler admits requests whose token passes check to next. A request without a token is answered with 428 (Precondition Required), one with
// a malformed token with 400, one that check refuses with ErrStale or ErrNoToken with 412 (Precondition Failed). Another error of check
// is a fault of the service, and answered with 500, without its text.
//
//	var tokens guard.Memory
//	http.Handle("PUT /accounts/{id}", guard.Handler(accounts, func(r *http.Request, token uint64) error {
//		return tokens.Write("accounts/"+r.PathValue("id"), token)
//	}))
//
// The check comes before the work: where a late request must not write even after a pause in the middle of next, check in the
// transaction of the work, with [SQL].
func Handler(next http.Handler, check func(r *http.Request, token uint64) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := r.Header.Get(Header)
		if text == "" {
			http.Error(w, "header "+Header+" is missing", http.StatusPreconditionRequired)
			return
		}
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
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
