package recipes

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/go-dsync/dsync/guard"
)

// UpdateBalance changes an account on behalf of the holder of the lock
// "accounts/" + id. The database contains package guard's table.
func UpdateBalance(ctx context.Context, db *sql.DB, id string, token uint64, change func(balance int64) int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := guard.Postgres.Write(ctx, tx, "accounts/"+id, token); err != nil {
		return err // guard.ErrStale: a later holder has presented its token
	}
	var balance int64 // read after Write: an earlier holder has committed, or never will
	if err := tx.QueryRowContext(ctx, `select balance from accounts where id = $1`, id).Scan(&balance); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `update accounts set balance = $1 where id = $2`, change(balance), id); err != nil {
		return err
	}
	return tx.Commit()
}

// Charge changes an account with work that does not fit into one transaction,
// such as a call to a payment provider.
func Charge(ctx context.Context, db *sql.DB, id string, token uint64,
	work func(ctx context.Context, balance int64) (int64, error)) error {
	if err := guard.Postgres.Enter(ctx, db, "accounts/"+id, token); err != nil {
		return err
	}
	var balance int64 // read after Enter
	if err := db.QueryRowContext(ctx, `select balance from accounts where id = $1`, id).Scan(&balance); err != nil {
		return err
	}
	balance, err := work(ctx, balance)
	if err != nil {
		return err
	}
	return UpdateBalance(ctx, db, id, token, func(int64) int64 { return balance })
}

// UpdateObject changes an object in a store that supports If-Match, such as S3.
// The object's token is in its metadata.
func UpdateObject(ctx context.Context, url string, token uint64, change func(old []byte) []byte) error {
	for {
		old, err := ask(ctx, http.MethodGet, url, nil, nil, http.StatusNotFound)
		if err != nil {
			return err
		}
		if last, _ := strconv.ParseUint(old.header.Get(tokenHeader), 10, 64); last > token { // 0 where there is none
			return fmt.Errorf("%w: %s was written with the token %d", guard.ErrStale, url, last)
		}
		header := http.Header{tokenHeader: {strconv.FormatUint(token, 10)}, "If-None-Match": {"*"}} // the object must not exist yet
		if old.status == http.StatusOK {
			header = http.Header{tokenHeader: header[tokenHeader], "If-Match": {old.header.Get("ETag")}}
		}
		written, err := ask(ctx, http.MethodPut, url, header, change(old.body), http.StatusPreconditionFailed)
		if err != nil || written.status != http.StatusPreconditionFailed {
			return err
		}
	} // another client has written in between
}

const tokenHeader = "X-Amz-Meta-Dsync-Token"

// Message is a message to a log such as Kafka, with the lock's name as its key.
// All messages of a key are in one partition, in order.
type Message struct {
	Key   string
	Token uint64 // in a header
	Value []byte
}

// Consume handles a message, unless its sender had lost the lock.
func Consume(tokens *guard.Memory, m Message, handle func(Message) error) error {
	if err := tokens.Write(m.Key, m.Token); errors.Is(err, guard.ErrStale) {
		return nil
	} else if err != nil {
		return err
	}
	return handle(m)
}

// answer is a response from a store.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request. It returns an error for every response except success
// and the one other status that the caller expects.
func ask(ctx context.Context, method, url string, header http.Header, body []byte, beside int) (a answer, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	if header != nil {
		r.Header = header
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	switch a.status, a.header = response.StatusCode, response.Header; {
	case a.status == beside:
	case a.status/100 == 2:
		a.body, err = io.ReadAll(response.Body)
	default:
		err = fmt.Errorf("%s %s: %s", method, url, response.Status)
	}
	return a, err
}
