package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

// newKey returns a key that no other attempt has. The key of an exclusive lock
// begins like the keys of package concurrency, which consist only of the lease.
func newKey(dir, mark string, id clientv3.LeaseID, number uint64) string {
	b := append(make([]byte, 0, 64), dir...) // large enough for most keys
	b = append(b, mark...)
	b = strconv.AppendUint(b, uint64(id), 16)
	b = append(b, '-')
	b = strconv.AppendUint(b, number, 16)
	return string(b)
}

// isOfClient reports whether two keys differ only in their numbers.
func isOfClient(key, own string) bool {
	n := strings.LastIndexByte(own, '-') + 1
	return len(key) > n && key[:n] == own[:n]
}

// anyExcludes reports whether one of kvs excludes a mode.
func anyExcludes(dir string, kvs []*mvccpb.KeyValue, mode driver.Mode) bool {
	return slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return excludes(dir, kv, mode) })
}

// excludes reports whether kv contends for the lock on dir in a mode that
// excludes the given one. This is the only rule: a key holds the lock if no key
// before it excludes its mode.
func excludes(dir string, kv *mvccpb.KeyValue, mode driver.Mode) bool {
	return isContender(dir, kv) && mode.Excludes(modeOf(dir, kv))
}

// isContender reports whether kv contends for the lock on dir itself, and not
// for a lock with a longer name.
func isContender(dir string, kv *mvccpb.KeyValue) bool {
	last := kv.Key[min(len(dir), len(kv.Key)):]
	for _, c := range last {
		if c == '/' || c == 0 { // a longer name, or the record of a longer name
			return isRecipe(last)
		}
	}
	return true
}

// The part of a key after dir encodes the mode. In keys of this driver, this
// part begins with a mark or, in mode Exclusive, with the lease. The RWMutex of
// etcd's package recipe makes keys of two parts. RWMutex.RLock waits for all
// keys that begin with "write", and RWMutex.Lock for all keys.
const (
	readMark  = "+read-" // sorts before all digits and letters: see keyRange
	writeMark = "write-"

	recipeRead  = "read/"  // and a time in nanoseconds
	recipeWrite = "write/" // and a time in nanoseconds
	recipeTime  = 19       // digits
)

// rule describes how a mode affects a request for a lock. driver.Mode.Excludes
// defines which keys exclude it.
type rule struct {
	mark    string // the beginning of the key's last part; longer for permits
	forRead bool   // the range that it reads and watches contains neither Reads nor its own key
	// the permits of all keys before its own count, and so does the record of
	// the name
	adds bool
	// a grant by events must be confirmed by a read, because events report
	// neither its own key nor a new limit
	confirms     bool
	shared       bool // several clients may hold the name
	besideRecipe bool // RWMutex clients overlook its key if the key is put again
}

// rules contains the rule of each mode.
var rules = [...]rule{
	driver.Exclusive: {},
	driver.Read:      {mark: readMark, forRead: true, confirms: true, shared: true, besideRecipe: true},
	driver.Write:     {mark: writeMark, besideRecipe: true},
	driver.Permit:    {adds: true, confirms: true, shared: true},
}

// modeOf returns the mode of a contender for dir.
func modeOf(dir string, kv *mvccpb.KeyValue) driver.Mode {
	switch last := kv.Key[len(dir):]; {
	case bytes.HasPrefix(last, []byte(readMark)), bytes.HasPrefix(last, []byte(recipeRead)):
		return driver.Read
	case bytes.HasPrefix(last, []byte(writeMark)), bytes.HasPrefix(last, []byte(recipeWrite)):
		return driver.Write
	}
	if n, _ := permitsOf(kv.Key); n > 0 {
		return driver.Permit
	}
	return driver.Exclusive
}

// isRecipe reports whether the last part of a key is from RWMutex, and not from
// a lock with a longer name.
func isRecipe(last []byte) bool {
	time, ok := bytes.CutPrefix(last, []byte(recipeRead))
	if !ok {
		time, ok = bytes.CutPrefix(last, []byte(recipeWrite))
	}
	return ok && len(time) == recipeTime && len(bytes.Trim(time, "0123456789")) == 0
}

// Permits are a mode of the queue. The key of a request contains its number of
// permits and their limit: permits-2of10-<lease>-<number>. A key has its
// permits if no key before it excludes the mode, and if the permits of all keys
// up to it do not exceed the limit. So all keys that have permits are within
// the limit at each revision, and no waiter is overtaken.
//
// SetLimit stores the limit permanently, in the record of the name. Without a
// record, the oldest key sets the limit, which is forgotten with the last key.
// Only if there is a record may a key have the limit 0.
const permitMark = "permits-"

// markOfPermits returns the beginning of the last part of a request's key.
func markOfPermits(n, limit int) string {
	return permitMark + strconv.Itoa(n) + "of" + strconv.Itoa(limit) + "-"
}

// permitsOf returns the number of permits that the key of a contender requests,
// 0 in other modes, and the limit that the key contains.
func permitsOf(key []byte) (n, limit int) {
	rest, ok := bytes.CutPrefix(key[bytes.LastIndexByte(key, '/')+1:], []byte(permitMark))
	if !ok {
		return 0, 0
	}
	text, rest, _ := bytes.Cut(rest, []byte("of"))
	of, _, _ := bytes.Cut(rest, []byte("-"))
	n, err1 := strconv.Atoi(string(text))
	limit, err2 := strconv.Atoi(string(of))
	if err1 != nil || err2 != nil || n < 1 || limit < 0 {
		return 0, 0
	}
	return n, limit
}

// keyRange holds the keys of all contenders for a name that can exclude a mode.
// For a Read these are all keys except the Reads of this driver, so a thousand
// Reads do not burden each other with answers or events. A keyRange can also
// hold a single key.
type keyRange struct {
	dir      string
	forRead  bool
	ofRecord bool // of the key dir, which is a part of the record of a name
	ends     bool // of the key dir, a contender's or a latch: only its deletion is watched
}

func (r keyRange) from() string {
	if r.forRead {
		return r.dir + "0"
	}
	return r.dir
}

// rest returns the option that extends a request for the key from() to the
// range.
func (r keyRange) rest() clientv3.OpOption {
	switch {
	case r.forRead:
		return clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.dir))
	case r.ends:
		return clientv3.WithFilterPut()
	case r.ofRecord:
		return func(*clientv3.Op) {}
	}
	return clientv3.WithPrefix()
}

// read turns op, a read without a key, into a read of the range. It does the
// same as from and rest with fewer allocations.
func (r keyRange) read(op clientv3.Op) clientv3.Op {
	end := []byte(r.dir)
	end[len(end)-1]++ // the slash
	op.WithKeyBytes([]byte(r.from()))
	op.WithRangeBytes(end)
	return op
}

// isEmpty is the condition that there is no key in the range.
func (r keyRange) isEmpty() clientv3.Cmp {
	none := clientv3.Compare(clientv3.CreateRevision(r.from()), "=", 0)
	if r.forRead {
		return none.WithRange(clientv3.GetPrefixRangeEnd(r.dir))
	}
	return none.WithPrefix()
}

// errOverlooked is the error for a key that was not put again, because a client
// of RWMutex would overlook it.
var errOverlooked = fmt.Errorf("a client of RWMutex has arrived since then, and would overlook a key that is put again: %w", errors.ErrUnsupported)

// value is the JSON value of a key, which describes its holder for people.
type value struct {
	Owner string    `json:"owner,omitempty"`
	Host  string    `json:"host,omitempty"`
	Time  time.Time `json:"time"`
	Note  string    `json:"note,omitempty"`
	Hold  string    `json:"hold,omitempty"`
	Pass  int       `json:"pass,omitempty"` // number of times that the hold was passed to another caller of the client
}

// text returns v as it is stored in the key.
func (v value) text() []byte {
	text, _ := json.Marshal(v) // which does not fail with strings, a number and a time
	return text
}

// opPut makes the operation that puts a key with a value.
func opPut(key string, text []byte, options ...clientv3.OpOption) clientv3.Op {
	op := clientv3.OpPut(key, "", options...)
	op.WithValueBytes(text)
	return op
}

// The permanent state of a name is stored in keys next to those of its
// contenders. These keys have a NUL where contenders have a slash.
const (
	sealSuffix  = "\x00seal"  // the value is the last token
	looseSuffix = "\x00loose" // the value is the id of Loosen
	markSuffix  = "\x00mark"  // no value
	baseSuffix  = "\x00base"  // the value is the number added to revisions
	limitSuffix = "\x00limit" // the value is the number of permits
)

// record is the permanent state of a name.
type record struct {
	sealed, marked bool

	last     uint64 // token, if it is sealed
	sealedAt int64  // revision

	base   uint64 // the difference between tokens and revisions, even after the mark was removed
	raised int64  // modification revision of the key of base

	limit   int   // of permits, as set by SetLimit; 0 if it never was set
	limited int64 // modification revision of the key of limit
}

func sealKey(dir string) string  { return dir[:len(dir)-1] + sealSuffix }
func looseKey(dir string) string { return dir[:len(dir)-1] + looseSuffix }
func markKey(dir string) string  { return dir[:len(dir)-1] + markSuffix }
func baseKey(dir string) string  { return dir[:len(dir)-1] + baseSuffix }
func limitKey(dir string) string { return dir[:len(dir)-1] + limitSuffix }

// notSealed is the condition under which a key may contend for a name.
func notSealed(dir string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(sealKey(dir)), "=", 0)
}

// isAbsent is the condition that a key does not exist. The key is not set yet.
var isAbsent = clientv3.Compare(clientv3.CreateRevision(""), "=", 0)

// noRecord is the condition that a name has no record.
func noRecord(dir string) clientv3.Cmp {
	from, end := []byte(dir), []byte(dir)
	from[len(dir)-1], end[len(dir)-1] = 0, 1 // NUL and the next byte in place of the slash
	c := isAbsent.WithRange(string(end))
	c.WithKeyBytes(from)
	return c
}

// getRecord reads the record of a name.
func getRecord(dir string) clientv3.Op {
	return clientv3.OpGet(dir[:len(dir)-1]+"\x00", clientv3.WithPrefix())
}

// readRecord reads the answer to getRecord.
func readRecord(dir string, kvs []*mvccpb.KeyValue) (r record, err error) {
	for _, kv := range kvs {
		n, wrong := strconv.ParseUint(string(kv.Value), 10, 64)
		switch string(kv.Key) {
		case sealKey(dir):
			r.sealed, r.last, r.sealedAt = true, n, kv.ModRevision
		case baseKey(dir):
			r.base, r.raised = n, kv.ModRevision
		case limitKey(dir):
			r.limit, r.limited = int(n), kv.ModRevision
		case markKey(dir):
			r.marked, wrong = true, nil
		default:
			wrong = nil // another key, whose value need not be a number
		}
		if wrong != nil {
			err = fmt.Errorf("key %q is not a number: %w", kv.Key, wrong)
		}
	}
	return r, err
}
