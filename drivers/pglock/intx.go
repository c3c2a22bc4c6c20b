package pglock

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// InTx takes the lock of a name for a transaction of the caller: the database gives the lock back when the transaction ends, and neither
// before nor in another way. InTx waits until ctx is done; the end of ctx ends the transaction's connection, as with any statement. The
// keys are the default ones of this package, so InTx and holders of the name through a [Driver] exclude each other.
//
// InTx is for work in one transaction, also behind a pooler in transaction mode. There is no lease and no token: while the transaction
// lasts, the lock is held, and the transaction's writes count only if the lock is held to the end. In an isolation level above READ
// COMMITTED take the lock with the first statement, for the transaction sees the data of that moment.
func InTx(ctx context.Context, tx pgx.Tx, name string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1::pg_catalog.text, 0))`, name); err != nil {
		return fmt.Errorf("pglock: lock %q in a transaction: %w", name, err)
	}
	return nil
}
