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

// Once does the work for a key once, and returns its result to every caller.
// The work makes its writes in tx, which also stores the result. The database
// has the table of package guard, and a table of results.
func Once(ctx context.Context, l dsync.Locker, db *sql.DB, key string,
	work func(ctx context.Context, tx *sql.Tx) (string, error), opts ...dsync.LockOption) (result string, err error) {
	err = dsync.Do(ctx, l, "once/"+key, func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := guard.Postgres.Write(ctx, tx, "once/"+key, dsync.LeaseFrom(ctx).Token()); err != nil {
			return err
		}
		err = tx.QueryRowContext(ctx, `select result from results where key = $1`, key).Scan(&result)
		if !errors.Is(err, sql.ErrNoRows) {
			return err // nil if the work was done earlier
		}
		if result, err = work(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `insert into results (key, result) values ($1, $2)`, key, result); err != nil {
			return err
		}
		return tx.Commit()
	}, opts...)
	return result, err
}
