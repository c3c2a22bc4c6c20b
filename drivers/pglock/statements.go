package pglock

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgproto3"
)

// SQL of queries, which no session prepares.
const (
	unlockAllQuery = `SELECT pg_catalog.pg_advisory_unlock_all()`

	cancelQuery = `SELECT pg_catalog.pg_cancel_backend($1::pg_catalog.int4)`

	// terminateQuery ends a session of ours, unless its process is gone, or serves somebody else by now.
	terminateQuery = `SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity ` +
		`WHERE pid = $1::pg_catalog.int4 AND application_name = $2::pg_catalog.text`

	// waitsQuery asks whether a session of ours carries out a statement, and does not read pg_locks, which stops all who take or give
	// back a lock for as long as that takes. What the role may not see counts as yes.
	// The second result is how many microseconds the server took, which grows with its connections.
	waitsQuery = `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_get_activity($1::pg_catalog.int4) ` +
		`WHERE coalesce(application_name = $2::pg_catalog.text, true) AND state IS DISTINCT FROM 'idle'), ` +
		`(EXTRACT(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()) * 1000000)::pg_catalog.int8`

	hashQuery = `SELECT pg_catalog.hashtextextended($1::pg_catalog.text, 0)`

	holdersQuery = `SELECT l.pid, l.granted, coalesce(a.application_name, ''), l.mode = 'ShareLock' ` +
		`FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid ` +
		`WHERE l.locktype = 'advisory' AND l.classid = $1::pg_catalog.oid AND l.objid = $2::pg_catalog.oid ` +
		`AND l.objsubid = $3::pg_catalog.int2 ` +
		`AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) ` +
		`ORDER BY l.granted DESC, l.waitstart, l.pid`

	// forceQuery ends the sessions which hold a lock.
	forceQuery = `SELECT l.pid, pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l ` +
		`WHERE l.granted AND l.locktype = 'advisory' AND l.classid = $1::pg_catalog.oid AND l.objid = $2::pg_catalog.oid ` +
		`AND l.objsubid = $3::pg_catalog.int2 ` +
		`AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`
)

// The names of prepared statements. Statements with a key exist for each of the two forms of a key.
const (
	tryName    = "try"
	grantName  = "grant" // a try with its own token
	blockName  = "block"
	unlockName = "unlock"
	admitName  = "admit"
	tokenName  = "token"
	keepName   = "keep"
	pingName   = "ping"
)

type preparedStatement struct {
	name, sql string
	params    []uint32 // types
}

const (
	int4OID = 23
	int8OID = 20
)

// preparedStatements returns what each session prepares when it connects.
//
// A token is a transaction id, taken after the grant of the lock. CASE promises this order; the same two functions in one list of
// results, or in an unused WITH, have no order or are not even called.
func preparedStatements(t Tokens, pairs bool) []preparedStatement {
	const xid = `pg_catalog.pg_current_xact_id()`
	all := []preparedStatement{
		{pingName, `SELECT pg_catalog.pg_backend_pid()`, nil},
		{tokenName, `SELECT ` + xid, nil},
	}
	if t == TokensDurable {
		// An id whose transaction wrote nothing may be given out again after a crash. The transaction of this statement has a later id, and
		// writes a record with the id to the log. The record is on disk when the answer comes, and no server begins below it.
		all = append(all, preparedStatement{keepName, `SELECT CASE WHEN pg_catalog.pg_logical_emit_message(true, 'dsync', ''::pg_catalog.text) ` +
			`IS NOT NULL THEN pg_catalog.pg_backend_pid() END`, nil})
	}
	withKey := func(mode, suffix, args string, params ...uint32) {
		call := func(function string) string { return `pg_catalog.` + function + mode + `(` + args + `)` }
		try, block := call(`pg_try_advisory_lock`), call(`pg_advisory_lock`)
		wait := `SELECT CASE WHEN ` + block + `::pg_catalog.text IS NOT NULL THEN ` + xid + ` END`
		if t == TokensNone {
			wait = `SELECT ` + block
		}
		suffix = mode + suffix
		all = append(all,
			preparedStatement{tryName + suffix, `SELECT ` + try, params},
			preparedStatement{grantName + suffix, `SELECT CASE WHEN ` + try + ` THEN ` + xid + ` END`, params},
			preparedStatement{blockName + suffix, wait, params},
			preparedStatement{unlockName + suffix, `SELECT ` + call(`pg_advisory_unlock`), params})
		if mode == sharedSuffix {
			all = append(all, preparedStatement{admitName + suffix, `SELECT ` + call(`pg_try_advisory_xact_lock`), params})
		}
	}
	for _, mode := range []string{"", sharedSuffix} {
		withKey(mode, "", "$1", int8OID)
		if pairs {
			withKey(mode, pairSuffix, "$1, $2", int4OID, int4OID)
		}
	}
	return all
}

// The suffixes of a statement for reading, and of one for a key of two numbers.
const sharedSuffix, pairSuffix = "_shared", "2"

// binary makes all parameters and results binary.
var binaryFormat = []int16{1}

// appendStatement encodes the execution of a prepared statement.
func appendStatement(buf []byte, name string, params ...[]byte) []byte {
	bind := pgproto3.Bind{
		PreparedStatement:    name,
		ParameterFormatCodes: binaryFormat,
		Parameters:           params,
		ResultFormatCodes:    binaryFormat,
	}
	buf, _ = bind.Encode(buf) // fails for messages of gigabytes
	buf, _ = (&pgproto3.Execute{}).Encode(buf)
	return buf
}

// appendKeyed is appendStatement for a statement about the key of an operation.
func appendKeyed(buf []byte, name string, op *operation) []byte {
	if op.shared {
		name += sharedSuffix
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], op.key.bits)
	if op.key.pair {
		return appendStatement(buf, name+pairSuffix, b[:4], b[4:])
	}
	return appendStatement(buf, name, b[:])
}

// appendQuery encodes the parsing and execution of a statement.
func appendQuery(buf []byte, sql string, params [][]byte) []byte {
	buf, _ = (&pgproto3.Parse{Query: sql}).Encode(buf)
	return appendStatement(buf, "", params...)
}

// appendSync ends a group.
func appendSync(buf []byte) []byte {
	buf, _ = (&pgproto3.Sync{}).Encode(buf)
	return buf
}

func int4(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
