package pglock

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// InTx takes the lock of a name for a transaction of the caller: the database gives it back when the transaction ends, and neither
// before nor in another way. It waits until ctx is done, which ends the transaction's connection as any statement does. The keys are
// the default ones of this package, so it excludes and is excluded by those who hold the name through a [Driver].
//
// It is for work that is one transaction anyway, also behind a pooler in transaction mode. There is no lease and no token: while the
// transaction lasts, the lock is held, and what the transaction writes counts only if it is held to the end. In an isolation level
// above READ COMMITTED take the lock with the first statement, for the transaction sees the data of that moment.
func InTx(ctx context.Context, tx pgx.Tx, name string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1::pg_catalog.text, 0))`, name); err != nil {
		return fmt.Errorf("pglock: lock %q in a transaction: %w", name, err)
	}
	return nil
}
