package pglock

import (
	"context"
	"hash/fnv"

	migration "github.com/go-dsync/dsync/driver/move"
)

var _ migration.Identifier = (*Driver)(nil)

// identityQuery asks for what the server's data directory was given when it was made, and standbys have too, and for the database.
const identityQuery = `SELECT s.system_identifier, d.oid FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d ` +
	`WHERE d.datname = pg_catalog.current_database()`

// Identity implements move.Identifier. A role that may not call pg_control_system gets an error.
func (d *Driver) Identity(ctx context.Context) (uint64, error) {
	rows, err := d.ask(ctx, identityQuery)
	if err != nil {
		return 0, err
	}
	if len(rows) != 1 || len(rows[0]) != 2 || len(rows[0][0]) != 8 || len(rows[0][1]) != 4 {
		return 0, errAnswer
	}
	hash := fnv.New64a()
	hash.Write(rows[0][0])
	hash.Write(rows[0][1])
	return hash.Sum64(), nil
}
