// Package recipes contains the code of docs/recipes.md, with a test for each
// recipe. The code is meant to be copied.
package recipes

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/guard"
)

// Results stores results in a table or a cache.
type Results interface {
	Load(ctx context.Context, key string) (result string, ok bool, err error)

	// Enter waits until no Store with a smaller token is in progress, and from
	// then on makes Store refuse smaller tokens.
	Enter(ctx context.Context, key string, token uint64) error

	// Store refuses a token that is smaller than the largest token that Enter
	// or Store has seen.
	Store(ctx context.Context, key, result string, token uint64) error
}

// Idempotent does the work for a key once and returns its result to every
// caller. A caller may be a client that repeats its request with the same
// Idempotency-Key, or one of several processes that need the same page at the
// same moment (singleflight).
func Idempotent(ctx context.Context, l dsync.Locker, r Results, key string,
	work func(context.Context) (string, error), opts ...dsync.LockOption) (result string, err error) {
	result, ok, err := r.Load(ctx, key)
	if ok || err != nil {
		return result, err // most calls end here, without a lock
	}
	err = dsync.Do(ctx, l, "once/"+key, func(ctx context.Context) (err error) {
		token := dsync.LeaseFrom(ctx).Token()
		if err = r.Enter(ctx, key, token); err != nil {
			return err
		}
		if result, ok, err = r.Load(ctx, key); ok || err != nil {
			return err // another caller was faster
		}
		if result, err = work(ctx); err != nil {
			return err
		}
		return r.Store(ctx, key, result, token)
	}, opts...)
	return result, err
}

// ResultTable implements Results in a database that also contains package
// guard's table.
type ResultTable struct{ DB *sql.DB }

// Load implements Results.
func (t ResultTable) Load(ctx context.Context, key string) (result string, ok bool, err error) {
	err = t.DB.QueryRowContext(ctx, `select result from results where key = $1`, key).Scan(&result)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return result, err == nil, err
}

// Enter implements Results.
func (t ResultTable) Enter(ctx context.Context, key string, token uint64) error {
	return guard.Postgres.Enter(ctx, t.DB, "once/"+key, token)
}

// Store implements Results.
func (t ResultTable) Store(ctx context.Context, key, result string, token uint64) error {
	tx, err := t.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := guard.Postgres.Write(ctx, tx, "once/"+key, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `insert into results (key, result) values ($1, $2)`, key, result); err != nil {
		return err
	}
	return tx.Commit()
}
