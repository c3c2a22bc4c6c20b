package pglock

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-dsync/dsync/driver"
)

// operation is what a session carries out for a caller: a statement, or a few in turn, and the outcome. The table moves has the order of
// statements.
type operation struct {
	key    AdvisoryKey
	lease  *lease   // granted by an answer of yes; nil if none
	sql    string   // of a query
	params [][]byte // of a query
	reads  bool     // the caller calls readAnswer next
	shared bool     // the lock is for reading
	after  func()   // called once when the operation is settled, without locks; does not block; may be nil
	done   chan struct{}
	on     *session // set when the session takes the operation
	passed bool     // the gate waits for it no more, as the session hangs; guarded by Driver.mu

	// Guarded by session.mu until done is closed, after the call of after.
	step      step
	settled   bool
	abandoned bool  // nobody wants the lock any more
	undo      error // why the lock is being given back; then the outcome
	repeated  bool  // the unlock was sent before and failed
	kept      bool  // the lock stays with other holds of the session, and the unlock is a ping
	sent      int64 // the last time; 0 if never
	yes       bool
	xid       uint64
	rows      [][][]byte
	err       error
}

func newOperation(first step, key AdvisoryKey) *operation {
	return &operation{step: first, key: key, done: make(chan struct{})}
}

// errAbandoned is the outcome of an abandoned operation after its lock was given back.
var errAbandoned = errors.New("nobody wants the lock any more")

// finish tells the waiting callers. Called once the operation is settled, without locks.
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
	try       step = iota // pg_try_advisory_lock
	block                 // pg_advisory_lock
	confirm               // a ping after the grant of a long block: its answer shows until when the session lasts
	stamp                 // the token of the group alone: the session has the lock, from a try in a failed group or for another Read
	unlock                // pg_advisory_unlock
	admit                 // pg_try_advisory_xact_lock_shared: whether a Read would be granted; nothing is left of it after its group
	ping                  // whether the session lives
	keep                  // a later transaction id than all that the session took so far, on the server's disk
	query                 // anything else that is about no lock of the session
	unlockAll             // pg_advisory_unlock_all
)

// answer is what the server said to the step of an operation.
type answer uint8

const (
	skipped     answer = iota // nothing: an earlier statement failed
	failed                    // an error, of the statement or of its token
	failedAgain               // an error, of a repeated unlock
	denied                    // the role may not lock
	no                        // to a try: the lock is taken; to an unlock: the lock was not held
	yes
	unstamped // yes, but the statement of the token was skipped
	unwanted  // yes, and the operation was abandoned
	answers   = iota
)

// move is what follows an answer.
type move uint8

const (
	settle    move = iota // the operation has its outcome
	repeat                // the same step again
	later                 // the same step again, with the next ping
	toStamp               // the step stamp
	toConfirm             // the step confirm
	giveBack              // the step unlock, and the outcome is that nothing was granted
)

// moves has all moves of an operation, by step and answer. A session keeps its locks when a transaction fails, so after an error a lock
// may have been granted all the same, and is given back.
var moves = [...][answers]move{
	try:       {skipped: repeat, failed: giveBack, denied: settle, no: settle, yes: settle, unstamped: toStamp, unwanted: giveBack},
	block:     {skipped: repeat, failed: giveBack, denied: settle, no: toConfirm, yes: toConfirm, unwanted: giveBack},
	confirm:   {skipped: repeat, failed: giveBack, no: settle, yes: settle, unwanted: giveBack},
	stamp:     {skipped: repeat, failed: giveBack, yes: settle, unwanted: giveBack},
	unlock:    {skipped: repeat, failed: repeat, failedAgain: later, no: settle, yes: settle},
	admit:     {skipped: repeat, failed: settle, no: settle, yes: settle},
	ping:      {skipped: repeat, failed: settle, no: settle, yes: settle},
	keep:      {skipped: repeat, failed: settle, no: settle, yes: settle},
	query:     {skipped: repeat, failed: settle, no: settle, yes: settle},
	unlockAll: {skipped: repeat, failed: settle, no: settle, yes: settle},
}

// gets reports whether the operation is about to get a lock.
func (s step) gets() bool { return s == try || s == block || s == confirm || s == stamp }

// mayLeave reports whether the server may have a lock of the operation, or give it one, if the connection ends now.
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

// moveOn takes the server's answer to the operation at i, and makes the move.
func (g *group) moveOn(i int) move {
	op, a := g.ops[i], g.answer(i)
	next := moves[op.step][a]
	if next == toConfirm && a == yes && g.short && !op.lease.r.Fixed { // a fixed lease lasts its TTL from the grant
		next = settle
	}
	switch a {
	case yes:
		op.yes = true
		if g.token && (op.step == try || op.step == stamp) {
			op.xid = g.xid
		}
	case failed, denied:
		op.repeated = op.step == unlock
		if next == settle {
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

// answer is the server's answer to the operation at i. With a fault, the statements before g.at are done, the one at g.at failed, and the
// rest was skipped. The statement of the token is the last.
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
	case op.step == stamp, op.step == unlock && op.repeated: // the unlock before may have been carried out
	case !op.yes:
		return no
	}
	if op.abandoned && op.step.gets() {
		return unwanted
	}
	return yes
}

// failure says what an error means.
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
