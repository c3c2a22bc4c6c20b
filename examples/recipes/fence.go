package recipes

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
)

// ErrFenced says that a later holder of the lock has written before.
var ErrFenced = errors.New("a later holder of the lock has written")

// Execer is a *sql.DB, or a *sql.Tx.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// SetBalance writes to a table that has a column for tokens:
//
//	alter table accounts add column fence bigint not null default 0
func SetBalance(ctx context.Context, db Execer, id string, balance int64, token uint64) error {
	result, err := db.ExecContext(ctx,
		`update accounts set balance = $1, fence = $2 where id = $3 and fence <= $2`, balance, int64(token), id)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(ErrFenced, err) // or there is no such account
	}
	return nil
}

// PutObject writes to an object store that knows If-Match, such as S3. The store compares versions, and no tokens: who writes last has to
// be who read last.
func PutObject(ctx context.Context, url, etag string, body []byte) (newTag string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	if r.Header.Set("If-Match", etag); etag == "" {
		r.Header.Del("If-Match")
		r.Header.Set("If-None-Match", "*") // the object must not be there yet
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusPreconditionFailed:
		return "", ErrFenced
	case answer.StatusCode/100 != 2:
		return "", fmt.Errorf("put %s: %s", url, answer.Status)
	}
	return answer.Header.Get("ETag"), nil
}

// Message is what a producer sends to a log such as Kafka, with the lock's name as its key: all messages of a key are in one partition,
// in order.
type Message struct {
	Key   string
	Token uint64 // in a header
	Value []byte
}

// Fence is the consumer's side: it keeps the largest token of each key, with the consumer's state.
type Fence map[string]uint64

// Admit reports whether a message counts.
func (f Fence) Admit(m Message) bool {
	if m.Token < f[m.Key] {
		return false // sent by a holder that had lost the lock
	}
	f[m.Key] = m.Token
	return true
}
