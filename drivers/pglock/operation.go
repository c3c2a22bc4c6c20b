package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/go-dsync/dsync/driver"
)

// operation is the work that a session does for a caller: one or more
// consecutive statements and their outcome. The table moves defines the order
// of statements.
type operation struct {
	key    AdvisoryKey
	lease  *lease   // the lease that the answer yes grants; nil if none
	sql    string   // text of a query
	params [][]byte // parameters of a query
	reads  bool     // the caller will call readAnswer next
	shared bool     // the lock is for reading
	// called once when the operation is concluded, without locks; must not
	// block; may be nil
	after func()
	done  chan struct{}
	on    *session // set when the session accepts the operation
	// the local queue no longer waits for the operation, because the session
	// hangs; guarded by Driver.mu
	passed bool

	// Guarded by session.mu until done is closed, after the call to after.
	step      step
	concluded bool
	abandoned bool  // no caller wants the lock now
	undo      error // why the lock is being released; afterwards the outcome
	repeated  bool  // the unlock was sent before and failed
	kept      bool  // the session keeps the lock for other holds, and the unlock is a ping
	sent      int64 // when it was last sent; 0 if never
	yes       bool
	xid       uint64
	rows      [][][]byte
	err       error
}

func newOperation(first step, key AdvisoryKey) *operation {
	return &operation{step: first, key: key, done: make(chan struct{})}
}

// errAbandoned is the outcome of an abandoned operation after its lock was
// released.
var errAbandoned = errors.New("the attempt has ended")

// finish notifies the waiting callers. It is called once the operation is
// concluded, without locks held.
func (op *operation) finish() {
	if op.after != nil {
		op.after()
	}
	if op.done != nil {
		close(op.done)
	}
}

// wait waits for the answer to an operation that leaves nothing behind.
func (op *operation) wait(ctx context.Context) error {
	select {
	case <-op.done:
		return refusal(op.err)
	case <-op.on.behind:
		return errHangs
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	}
}

// step is the next statement of an operation.
type step uint8

const (
	try   step = iota // pg_try_advisory_lock
	block             // pg_advisory_lock
	// a ping after the grant of a long block; its answer determines how long
	// the session lasts
	confirm
	// only the token of the group, because the session holds the lock from a
	// try in a failed group or for another Read
	stamp
	unlock // pg_advisory_unlock
	// pg_try_advisory_xact_lock_shared: reports whether a Read would be
	// granted; its group leaves no lock behind
	admit
	ping // checks whether the session is alive
	// a transaction id on the server's disk, later than all earlier ids of
	// the session
	keep
	query     // any other statement, which concerns no lock of the session
	unlockAll // pg_advisory_unlock_all
)

// answer is the server's answer to the step of an operation.
type answer uint8

const (
	skipped     answer = iota // nothing: an earlier statement failed
	failed                    // an error, of the statement or of its token
	failedAgain               // an error, of a repeated unlock
	denied                    // the role may not acquire locks
	no                        // to a try: the lock is taken; to an unlock: the lock was not held
	yes
	unstamped // yes, but the statement for the token was skipped
	unwanted  // yes, but the operation was abandoned
	answers   = iota
)

// move is the consequence of an answer.
type move uint8

const (
	conclude  move = iota // the operation has its outcome
	repeat                // the same step again
	later                 // the same step again, with the next ping
	toStamp               // the step stamp
	toConfirm             // the step confirm
	giveBack              // the step unlock, and the outcome is that nothing was granted
)

// moves contains all moves of an operation, by step and answer. A session keeps
// its locks when a transaction fails. So after an error a lock may have been
// granted anyway, and is released.
var moves = [...][answers]move{
	try:       {skipped: repeat, failed: giveBack, denied: conclude, no: conclude, yes: conclude, unstamped: toStamp, unwanted: giveBack},
	block:     {skipped: repeat, failed: giveBack, denied: conclude, no: toConfirm, yes: toConfirm, unwanted: giveBack},
	confirm:   {skipped: repeat, failed: giveBack, no: conclude, yes: conclude, unwanted: giveBack},
	stamp:     {skipped: repeat, failed: giveBack, yes: conclude, unwanted: giveBack},
	unlock:    {skipped: repeat, failed: repeat, failedAgain: later, no: conclude, yes: conclude},
	admit:     {skipped: repeat, failed: conclude, no: conclude, yes: conclude},
	ping:      {skipped: repeat, failed: conclude, no: conclude, yes: conclude},
	keep:      {skipped: repeat, failed: conclude, no: conclude, yes: conclude},
	query:     {skipped: repeat, failed: conclude, no: conclude, yes: conclude},
	unlockAll: {skipped: repeat, failed: conclude, no: conclude, yes: conclude},
}

// gets reports whether the operation is about to get a lock.
func (s step) gets() bool { return s == try || s == block || s == confirm || s == stamp }

// mayLeave reports whether the server may hold a lock for the operation, or
// grant it one, if the connection ends now.
func (op *operation) mayLeave() bool {
	switch op.step {
	case try, block, admit:
		return op.sent != 0
	case confirm, stamp, unlock, unlockAll:
		return true
	default:
		return false
	}
}

// moveOn handles the server's answer to the operation at i and makes the move.
func (g *group) moveOn(i int) move {
	op, a := g.ops[i], g.answer(i)
	next := moves[op.step][a]
	if next == toConfirm && a == yes && g.short && !op.lease.r.Fixed {
		// a fixed lease expires one TTL after the grant
		next = conclude
	}
	switch a {
	case yes:
		op.yes = true
		if g.token && (op.step == try || op.step == stamp) {
			op.xid = g.xid
		}
	case failed, denied:
		op.repeated = op.step == unlock
		if next == conclude {
			op.err = g.fault
		}
	}
	switch next {
	case toStamp:
		op.step = stamp
	case toConfirm:
		op.step = confirm
	case giveBack:
		op.undo = errAbandoned
		if a == failed {
			op.undo = g.fault
		}
	}
	return next
}

// answer is the server's answer to the operation at i. With a fault, the
// statements before g.at are done, the one at g.at failed, and the rest was
// skipped. The statement for the token is the last.
func (g *group) answer(i int) answer {
	op := g.ops[i]
	if g.fault != nil {
		tokenFailed := g.at >= g.statements
		switch {
		case op.step == keep && i != g.at && !tokenFailed: // undone with the whole group
			return skipped
		case op.step == keep:
			return op.failure(g.fault)
		case op.step == stamp && !tokenFailed, op.step != stamp && i > g.at:
			return skipped
		case i == g.at, tokenFailed && op.step.gets() && (op.yes || op.step == stamp):
			return op.failure(g.fault)
		case op.step == try && op.yes && g.token:
			return unstamped
		}
	}
	switch {
	case op.step == stamp, op.step == unlock && op.repeated:
		// the previous unlock may have been executed
	case !op.yes:
		return no
	}
	if op.abandoned && op.step.gets() {
		return unwanted
	}
	return yes
}

// failure returns the answer that an error from the server means.
func (op *operation) failure(fault error) answer {
	var e *pgconn.PgError
	switch {
	case op.step == unlock && op.repeated:
		return failedAgain
	case (op.step == try || op.step == block) && !op.yes && errors.As(fault, &e) && e.Code == codePermission:
		return denied
	}
	return failed
}

// SQL of queries that no session prepares.
const (
	unlockAllQuery = `SELECT pg_catalog.pg_advisory_unlock_all()`

	cancelQuery = `SELECT pg_catalog.pg_cancel_backend($1::pg_catalog.int4)`

	// terminateQuery ends a session of this driver, unless its process is gone,
	// or now serves another client.
	terminateQuery = `SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity ` +
		`WHERE pid = $1::pg_catalog.int4 AND application_name = $2::pg_catalog.text`

	// waitsQuery returns whether a session of this driver is executing a
	// statement. It does not read pg_locks, which would block all acquires and
	// releases in the meantime. If the role may not see a session, the answer
	// is yes. The second result is the time that the server took, in
	// microseconds. It grows with the number of connections.
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

	// forceQuery ends the sessions that hold a lock.
	forceQuery = `SELECT l.pid, pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l ` +
		`WHERE l.granted AND l.locktype = 'advisory' AND l.classid = $1::pg_catalog.oid AND l.objid = $2::pg_catalog.oid ` +
		`AND l.objsubid = $3::pg_catalog.int2 ` +
		`AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`
)

// The names of prepared statements. Statements with a key exist for each of the
// two forms of a key.
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

// preparedStatements returns the statements that each session prepares when it
// connects.
//
// A token is a transaction id, taken after the grant of the lock. CASE
// guarantees this order. If the same two functions are in one list of results,
// or in an unused WITH, they have no order or are not even called.
func preparedStatements(t Tokens, pairs bool) []preparedStatement {
	const xid = `pg_catalog.pg_current_xact_id()`
	all := []preparedStatement{
		{pingName, `SELECT pg_catalog.pg_backend_pid()`, nil},
		{tokenName, `SELECT ` + xid, nil},
	}
	if t == TokensDurable {
		// An id whose transaction wrote nothing may be given out again after a
		// crash. The transaction of this statement has a later id and writes a
		// record with the id to the log. The record is on disk when the answer
		// arrives, and no server starts with an id below it.
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

// The suffixes of a statement for reading, and of a statement for a key of two
// numbers.
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
	buf, _ = bind.Encode(buf) // encoding fails only for messages of gigabytes
	buf, _ = (&pgproto3.Execute{}).Encode(buf)
	return buf
}

// appendKeyed is like appendStatement, for a statement about the key of an
// operation.
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
