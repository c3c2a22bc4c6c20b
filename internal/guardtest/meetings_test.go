package guardtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/guard"
	"github.com/go-dsync/dsync/internal/testenv"
)

// read checks the balance, as a reader with the token.
func (db *database) read(token, want uint64) work {
	return func(ctx context.Context, tx *sql.Tx) error {
		if err := db.guard.Read(ctx, tx, "x", token); err != nil {
			return err
		}
		return balance(ctx, tx, want)
	}
}

var errUndo = errors.New("rolled back by the test")

func undo(context.Context, *sql.Tx) error { return errUndo }
func keep(context.Context, *sql.Tx) error { return nil }

// meet begins a second transaction while a first one is open. When the second
// waits or has ended, the first continues with last.
func (db *database) meet(t *testing.T, level sql.IsolationLevel, first, second, last work) (ofFirst, ofSecond error) {
	t.Helper()
	answer := make(chan error, 1)
	begun := false
	ofFirst = db.transact(t.Context(), level, func(ctx context.Context, tx *sql.Tx) error {
		if err := first(ctx, tx); err != nil {
			return err
		}
		begun = true
		go func() { answer <- db.transact(ctx, level, second) }()
		testenv.Eventually(t, func() bool { return len(answer) == 1 || db.waits(t) }, "the second transaction waits, or has ended")
		return last(ctx, tx)
	})
	if !begun {
		t.Fatal(ofFirst)
	}
	select {
	case ofSecond = <-answer:
	case <-time.After(time.Minute):
		t.Fatal("the second transaction has not ended")
	}
	return ofFirst, ofSecond
}

// waits reports whether a transaction is waiting for another transaction.
func (db *database) waits(t *testing.T) bool {
	if db.waiting == "" {
		return false
	}
	var n int
	if err := db.QueryRowContext(t.Context(), db.waiting).Scan(&n); err != nil {
		t.Error(err)
	}
	return n > 0
}

// expect checks the outcome of a transaction that met another transaction. A
// conflict is not an ErrStale, and must not let the transaction pass.
func (db *database) expect(t *testing.T, level level, got, want error) {
	t.Helper()
	switch {
	case level.conflicts && db.conflict(got) && !errors.Is(got, guard.ErrStale):
	case errors.Is(got, want) && (want != nil || got == nil):
	default:
		t.Errorf("got %v, want %v", got, want)
	}
}

// onEach runs a test on each level, for a name that has never been written and
// for a name with the token 1.
func (db *database) onEach(t *testing.T, test func(t *testing.T, level level, written uint64)) {
	for _, level := range db.levels {
		for written := range uint64(2) {
			t.Run(fmt.Sprintf("%v/%d", level.IsolationLevel, written), func(t *testing.T) {
				db.clear(t)
				if written > 0 {
					if err := db.transact(t.Context(), sql.LevelDefault, db.write(1)); err != nil {
						t.Fatal(err)
					}
				}
				test(t, level, written)
			})
		}
	}
}

// writerMeetsWriter starts a writer before another writer has ended. The second
// writer sees the write of the first.
func writerMeetsWriter(t *testing.T, db *database) {
	for _, c := range []struct {
		what          string
		first, second uint64
		end           work
		want          error
	}{
		{"late", 4, 3, keep, guard.ErrStale},
		{"late, but the other does not write", 4, 3, undo, nil},
		{"in time", 3, 4, keep, nil},
		{"the same holder", 3, 3, keep, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			db.onEach(t, func(t *testing.T, level level, written uint64) {
				found, left := c.first, c.second
				if c.want != nil {
					left = c.first
				} else if c.end(nil, nil) != nil {
					found = written
				}
				second := func(ctx context.Context, tx *sql.Tx) error {
					if err := db.guard.Write(ctx, tx, "x", c.second); err != nil {
						return err
					}
					return errors.Join(balance(ctx, tx, found), db.write(c.second)(ctx, tx))
				}
				ofFirst, ofSecond := db.meet(t, level.IsolationLevel, db.write(c.first), second, c.end)
				if ofFirst != nil && !errors.Is(ofFirst, errUndo) {
					t.Errorf("the first: %v", ofFirst)
				}
				if db.expect(t, level, ofSecond, c.want); db.conflict(ofSecond) {
					left = found
				}
				if err := db.transact(t.Context(), sql.LevelDefault, func(ctx context.Context, tx *sql.Tx) error { return balance(ctx, tx, left) }); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// readerMeetsWriter starts a reader before a writer has ended. On a database
// without waits, the reader sees the previous state.
func readerMeetsWriter(t *testing.T, db *database) {
	for _, c := range []struct {
		what           string
		writer, reader uint64
		end            work
		want           error
	}{
		{"late", 4, 3, keep, guard.ErrStale},
		{"late, but the writer does not write", 4, 3, undo, nil},
		{"in time", 3, 4, keep, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			db.onEach(t, func(t *testing.T, level level, written uint64) {
				found, want := c.writer, c.want
				if db.waiting == "" {
					found, want = written, nil
				} else if c.end(nil, nil) != nil {
					found = written
				}
				_, err := db.meet(t, level.IsolationLevel, db.write(c.writer), db.read(c.reader, found), c.end)
				db.expect(t, level, err, want)
			})
		})
	}
}

// writerMeetsReader starts a writer, and another reader, before a reader has
// ended. The first reader sees one state throughout.
func writerMeetsReader(t *testing.T, db *database) {
	db.onEach(t, func(t *testing.T, level level, written uint64) {
		same := func(ctx context.Context, tx *sql.Tx) error { return balance(ctx, tx, written) }
		reader, writer := db.meet(t, level.IsolationLevel, db.read(2, written), db.write(3), same)
		db.expect(t, level, writer, nil)
		if reader != nil {
			t.Errorf("the reader: %v", reader)
		}
	})
	db.onEach(t, func(t *testing.T, level level, written uint64) {
		first, second := db.meet(t, level.IsolationLevel, db.read(3, written), db.read(2, written), keep)
		db.expect(t, level, second, nil)
		if first != nil || written > 0 && second != nil {
			t.Errorf("two readers: %v, %v", first, second)
		}
	})
}

// snapshot reads the table in a transaction before another transaction writes.
func snapshot(t *testing.T, db *database) {
	for _, c := range []struct {
		what         string
		other, token uint64
		want         error
	}{{"late", 4, 3, guard.ErrStale}, {"in time", 3, 4, nil}} {
		t.Run(c.what, func(t *testing.T) {
			db.onEach(t, func(t *testing.T, level level, written uint64) {
				if level.locks {
					return // the other transaction would wait for this one
				}
				err := db.transact(t.Context(), level.IsolationLevel, func(ctx context.Context, tx *sql.Tx) error {
					if err := balance(ctx, tx, written); err != nil {
						return err
					}
					other := db.transact(ctx, sql.LevelDefault, db.write(c.other))
					if level.conflicts && db.conflict(other) {
						return other // SQLite permits no other writer
					}
					return errors.Join(other, db.guard.Write(ctx, tx, "x", c.token))
				})
				db.expect(t, level, err, c.want)
			})
		})
	}
}

// crowd runs many concurrent writers, each in a new transaction after a
// conflict, as programs do.
func crowd(t *testing.T, db *database) {
	for _, level := range db.levels {
		t.Run(level.String(), func(t *testing.T) {
			db.clear(t)
			var tokens atomic.Uint64
			var written, refused atomic.Int64
			var group sync.WaitGroup
			for range 4 {
				group.Go(func() {
					for range 15 {
						token := tokens.Add(1)
						time.Sleep(rand.N(3 * time.Millisecond)) // later writers may come first
						err := db.writeOnce(t, level, token)
						switch {
						case err == nil:
							written.Add(1)
						case errors.Is(err, guard.ErrStale):
							refused.Add(1)
						default:
							t.Errorf("token %d: %v", token, err)
						}
					}
				})
			}
			group.Wait()
			t.Logf("%d written, %d refused", written.Load(), refused.Load())
			if written.Load() == 0 {
				t.Error("nobody wrote")
			}
		})
	}
}

// writeOnce writes until there is no conflict. The balance never falls. A
// refused writer finds a larger balance.
func (db *database) writeOnce(t *testing.T, level level, token uint64) error {
	for {
		err := db.transact(t.Context(), level.IsolationLevel, func(ctx context.Context, tx *sql.Tx) error {
			if err := db.guard.Write(ctx, tx, "x", token); err != nil {
				return err
			}
			result, err := tx.ExecContext(ctx, fmt.Sprintf("update account set balance = %d where balance < %[1]d", token))
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); err != nil || n != 1 {
				return errors.Join(errors.New("a stale write got through"), err)
			}
			return nil
		})
		if db.conflict(err) {
			if errors.Is(err, guard.ErrStale) {
				t.Errorf("a conflict was taken for a stale token: %v", err)
			}
			continue
		}
		if errors.Is(err, guard.ErrStale) {
			var kept uint64
			if lookup := db.QueryRowContext(t.Context(), "select balance from account").Scan(&kept); lookup == nil && kept <= token {
				t.Errorf("token %d was refused, and the last written token is %d", token, kept)
			}
		}
		return err
	}
}

// enterMeetsWriter pauses a holder just before its commit, while the next
// holder enters, reads, and computes its write from the data that it read.
func enterMeetsWriter(t *testing.T, db *database) {
	testEnter(t, db, func(ctx context.Context, token uint64) error { return db.guard.Enter(ctx, db.DB, "x", token) })
}

func testEnter(t *testing.T, db *database, enter func(ctx context.Context, token uint64) error) {
	db.onEach(t, func(t *testing.T, level level, written uint64) {
		const paid = 10
		add := func(token uint64, balance int64) work {
			return func(ctx context.Context, tx *sql.Tx) error {
				if err := db.guard.Write(ctx, tx, "x", token); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, fmt.Sprintf("update account set balance = %d", balance+paid))
				return err
			}
		}
		var tries atomic.Int64
		var found int64
		entered := make(chan error, 1)
		err := db.transact(t.Context(), level.IsolationLevel, func(ctx context.Context, tx *sql.Tx) error {
			if err := add(2, int64(written))(ctx, tx); err != nil {
				return err
			}
			go func() {
				entered <- func() error {
					for {
						err := enter(t.Context(), 3)
						if tries.Add(1); !db.conflict(err) {
							return errors.Join(err, db.QueryRowContext(t.Context(), "select balance from account").Scan(&found))
						}
						time.Sleep(time.Millisecond)
					}
				}()
			}()
			testenv.Eventually(t, func() bool { return tries.Load() > 0 || db.waits(t) }, "the next holder waits, or is refused for now")
			if len(entered) > 0 {
				t.Error("the next holder has entered while a write is on its way")
			}
			return nil
		})
		if err := errors.Join(err, <-entered); err != nil {
			t.Fatal(err)
		}
		if want := int64(written) + paid; found != want {
			t.Errorf("the next holder reads %d, want %d", found, want)
		}
		if err := db.transact(t.Context(), level.IsolationLevel, add(2, 100)); !errors.Is(err, guard.ErrStale) {
			t.Errorf("a write of the earlier holder: got %v, want %v", err, guard.ErrStale)
		}
		if err := enter(t.Context(), 2); !errors.Is(err, guard.ErrStale) {
			t.Errorf("the earlier holder enters: got %v, want %v", err, guard.ErrStale)
		}
		if err := enter(t.Context(), 0); !errors.Is(err, guard.ErrNoToken) {
			t.Errorf("no token: got %v, want %v", err, guard.ErrNoToken)
		}
		if err := db.transact(t.Context(), level.IsolationLevel, add(3, found)); err != nil {
			t.Errorf("the holder writes after it has entered: %v", err)
		}
		if err := db.transact(t.Context(), sql.LevelDefault, func(ctx context.Context, tx *sql.Tx) error { return balance(ctx, tx, written+2*paid) }); err != nil {
			t.Error(err)
		}
	})
}

func TestEnterPGX(t *testing.T) {
	db := openPostgres(t)
	conn, err := pgx.Connect(t.Context(), db.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	testEnter(t, db, func(ctx context.Context, token uint64) error { return guard.EnterPGX(ctx, conn, "x", token) })
}
