package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// AdvisoryKey identifies an advisory lock: one 64-bit number, or two of 32
// bits. The two forms are different locks, even if the bits are the same.
type AdvisoryKey struct {
	bits uint64
	pair bool
}

// Int64Key is the lock of pg_advisory_lock(k).
func Int64Key(k int64) AdvisoryKey { return AdvisoryKey{bits: uint64(k)} }

// Int32PairKey is the lock of pg_advisory_lock(a, b).
func Int32PairKey(a, b int32) AdvisoryKey {
	return AdvisoryKey{bits: uint64(uint32(a))<<32 | uint64(uint32(b)), pair: true}
}

// HashedKey is the default: the lock of pg_advisory_lock(hashtextextended(name,
// 0)).
func HashedKey(name string) (AdvisoryKey, error) { return Int64Key(Key(name)), nil }

// NumberKey interprets the name as a decimal number, for a lock of 64 bits, as
// in "42". It rejects other spellings of the number, such as "042", "+42" and
// "-0", because a lock has only one name.
func NumberKey(name string) (AdvisoryKey, error) {
	n, err := parseNumber(name, 64)
	if err != nil {
		return AdvisoryKey{}, fmt.Errorf("name %q is not a 64-bit number in its shortest form: %w", name, errors.ErrUnsupported)
	}
	return Int64Key(n), nil
}

// PairKey interprets the name as two decimal numbers, for a lock with two
// numbers of 32 bits, as in "7/42". Like [NumberKey] it rejects other spellings
// of the numbers.
func PairKey(name string) (AdvisoryKey, error) {
	first, second, _ := strings.Cut(name, "/")
	a, err1 := parseNumber(first, 32)
	b, err2 := parseNumber(second, 32)
	if err1 != nil || err2 != nil {
		return AdvisoryKey{}, fmt.Errorf("name %q is not two 32-bit numbers in their shortest form with a slash between them: %w", name, errors.ErrUnsupported)
	}
	return Int32PairKey(int32(a), int32(b)), nil
}

// parseNumber parses a number in the format of strconv.FormatInt.
func parseNumber(text string, bits int) (int64, error) {
	n, err := strconv.ParseInt(text, 10, bits)
	if err == nil && strconv.FormatInt(n, 10) != text {
		err = strconv.ErrSyntax
	}
	return n, err
}

// String writes k as the arguments of pg_advisory_lock.
func (k AdvisoryKey) String() string {
	if k.pair {
		return fmt.Sprintf("%d, %d", int32(k.bits>>32), int32(k.bits))
	}
	return strconv.FormatInt(int64(k.bits), 10)
}

// Key returns hashtextextended(name, 0), as PostgreSQL computes it in a
// database with the encoding UTF8. In other databases the key is the same for
// names of ASCII characters, and the driver makes the server compute the other
// keys.
func Key(name string) int64 {
	p := []byte(name)
	a := 0x9e3779b9 + uint32(len(p)) + 3923095
	b, c := a, a
	for ; len(p) >= 12; p = p[12:] {
		a += binary.LittleEndian.Uint32(p)
		b += binary.LittleEndian.Uint32(p[4:])
		c += binary.LittleEndian.Uint32(p[8:])
		a, b, c = mix(a, b, c)
	}
	// the lowest byte of c is the length, so the bytes for c are shifted by one
	var tail [12]byte
	copy(tail[:8], p)
	if len(p) > 8 {
		copy(tail[9:], p[8:])
	}
	a += binary.LittleEndian.Uint32(tail[:])
	b += binary.LittleEndian.Uint32(tail[4:])
	c += binary.LittleEndian.Uint32(tail[8:])
	b, c = finish(a, b, c)
	return int64(uint64(b)<<32 | uint64(c))
}

// mix and finish are from Bob Jenkins' hash of 2006, with PostgreSQL's
// constants.
func mix(a, b, c uint32) (uint32, uint32, uint32) {
	for _, r := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
		a = a - c ^ bits.RotateLeft32(c, r[0])
		c += b
		b = b - a ^ bits.RotateLeft32(a, r[1])
		a += c
		c = c - b ^ bits.RotateLeft32(b, r[2])
		b += a
	}
	return a, b, c
}

func finish(a, b, c uint32) (uint32, uint32) {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	c = (c ^ b) - bits.RotateLeft32(b, 24)
	return b, c
}

// maxAsked bounds the memory for keys that the server computed.
const maxAsked = 10_000

// keyMaker computes the keys of names.
type keyMaker struct {
	custom func(string) (AdvisoryKey, error) // Options.Key; nil for hashes

	// ascii and all report whether a check at open found that the server agrees
	// about ASCII names and about all names.
	ascii, all bool

	mu    sync.Mutex
	asked map[string]AdvisoryKey
}

// key returns the key of a name, which the server computes if necessary.
func (d *Driver) key(ctx context.Context, name string) (AdvisoryKey, error) {
	m := &d.keys
	if m.custom != nil {
		return m.custom(name)
	}
	if m.all || m.ascii && isASCII(name) {
		return Int64Key(Key(name)), nil
	}
	m.mu.Lock()
	k, ok := m.asked[name]
	m.mu.Unlock()
	if ok {
		return k, nil
	}
	rows, err := d.query(ctx, hashQuery, []byte(name))
	if err != nil {
		return k, err
	}
	if len(rows) != 1 || len(rows[0]) != 1 || len(rows[0][0]) != 8 {
		return k, errAnswer
	}
	k = AdvisoryKey{bits: binary.BigEndian.Uint64(rows[0][0])}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil || len(m.asked) >= maxAsked {
		m.asked = make(map[string]AdvisoryKey)
	}
	m.asked[name] = k
	return k, nil
}

// learn compares the server's hashes of keyProbes with ours.
func (m *keyMaker) learn(hashes []int64) {
	m.ascii, m.all = true, true
	for i, probe := range keyProbes() {
		if i >= len(hashes) || hashes[i] != Key(probe) {
			m.all = false
			m.ascii = m.ascii && !isASCII(probe)
		}
	}
}

// keyProbes are texts of every length modulo the length of a block. The last
// text can only be represented in UTF8.
func keyProbes() []string {
	const text = "the quick brown fox jumps over it"
	var probes []string
	for n := range 26 {
		probes = append(probes, text[:n])
	}
	return append(probes, "żółw/鎖/🔒")
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// InTx acquires the lock of a name for a transaction of the caller. The
// database releases the lock when the transaction ends, and at no other time.
// InTx waits until ctx is done. If ctx ends, the transaction's connection ends,
// as with any statement. The keys are the default ones of this package, so InTx
// and holders of the name through a [Driver] exclude each other.
//
// InTx is for work in one transaction, even behind a pooler in transaction
// mode. It provides no lease and no token. The lock is held as long as the
// transaction lasts, and the transaction's writes only count if the lock is
// held to the end. In an isolation level above READ COMMITTED, acquire the lock
// with the first statement, because the transaction sees the data of that
// moment.
func InTx(ctx context.Context, tx pgx.Tx, name string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1::pg_catalog.text, 0))`, name); err != nil {
		return fmt.Errorf("pglock: lock %q in a transaction: %w", name, err)
	}
	return nil
}
