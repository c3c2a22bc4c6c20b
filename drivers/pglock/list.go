package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// listQuery asks for the advisory locks of the database.
const listQuery = `SELECT DISTINCT classid, objid, objsubid FROM pg_catalog.pg_locks WHERE granted AND locktype = 'advisory' ` +
	`AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`

// List implements driver.Lister where names are numbers ([NumberKey], [PairKey]), and yields the numbers that are locked. The server knows other
// names by their hashes alone.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		names, err := d.list(ctx)
		if err != nil {
			yield("", err)
			return
		}
		for _, name := range names {
			if strings.HasPrefix(name, prefix) && !yield(name, nil) {
				return
			}
		}
	}
}

func (d *Driver) list(ctx context.Context) (names []string, err error) {
	if d.keys.custom == nil {
		return nil, fmt.Errorf("the server keeps hashes of names, and with key=number or key=pair in the URL the numbers that are locked are listed: %w",
			errors.ErrUnsupported)
	}
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	rows, err := d.ask(ctx, listQuery)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if len(row) != 3 || len(row[0]) != 4 || len(row[1]) != 4 || len(row[2]) != 2 {
			return nil, errAnswer
		}
		high, low := binary.BigEndian.Uint32(row[0]), binary.BigEndian.Uint32(row[1])
		k, name := AdvisoryKey{bits: uint64(high)<<32 | uint64(low)}, ""
		if k.pair = binary.BigEndian.Uint16(row[2]) == 2; k.pair {
			name = fmt.Sprintf("%d/%d", int32(high), int32(low))
		} else {
			name = strconv.FormatInt(int64(k.bits), 10)
		}
		if own, err := d.keys.custom(name); err == nil && own == k {
			names = append(names, name)
		}
	}
	return names, nil
}
