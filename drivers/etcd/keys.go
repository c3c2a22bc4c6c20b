package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

var flatten = strings.NewReplacer("%", "%25", "/", "%2F")

// dir returns what the keys of all contenders for a name begin with.
func (d *Driver) dir(name string) string {
	if d.options.Flat {
		name = flatten.Replace(name)
	}
	return d.options.Prefix + name + "/"
}

// dir is Driver.dir for the name of h.
func (h *hold) dir() string { return h.key[:strings.LastIndexByte(h.key, '/')+1] }

// keys returns the range of the keys that matter to h.
func (h *hold) keys() keyRange { return keyRange{dir: h.dir(), forRead: h.rule().forRead} }

// newKey returns a key that no other attempt has. The key of an exclusive lock begins like the keys of package concurrency, which are the
// lease alone.
func newKey(dir, mark string, id clientv3.LeaseID, number uint64) string {
	b := append(make([]byte, 0, 64), dir...) // most keys are no longer
	b = append(b, mark...)
	b = strconv.AppendUint(b, uint64(id), 16)
	b = append(b, '-')
	b = strconv.AppendUint(b, number, 16)
	return string(b)
}

// isOfClient reports whether two keys differ in their numbers alone.
func isOfClient(key, own string) bool {
	n := strings.LastIndexByte(own, '-') + 1
	return len(key) > n && key[:n] == own[:n]
}

// takeNumber takes a number for the key. Numbers tell the keys of attempts apart that are under way at the same time. A number is used again
// as soon as it is free, and 0 is the first for each name, so that a name has few keys over time: whenever the server reads the keys of a
// name, it passes all keys that the name has had since the last compaction.
func (h *hold) takeNumber(dir string) {
	if h.session == nil || !h.session.takeFirst(dir) {
		h.number = h.driver.numbers.take()
	}
}

// putNumber gives the number back. No request that concerns the key may be on its way: it would hit the key of the next attempt.
func (h *hold) putNumber() {
	if h.number > 0 {
		h.driver.numbers.put(h.number)
		return
	}
	s := h.session
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.firsts, h.dir())
}

// takeFirst takes number 0 of a name, and reports whether it was free: no other attempt on the session has it.
func (s *session) takeFirst(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.firsts[dir]; taken {
		return false
	}
	s.firsts[dir] = struct{}{}
	return true
}

// numbers are the numbers of keys above 0, for all names.
type numbers struct {
	mu   sync.Mutex
	last uint64
	free []uint64 // the last one comes first
}

func (n *numbers) take() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := len(n.free) - 1; i >= 0 {
		number := n.free[i]
		n.free = n.free[:i]
		return number
	}
	n.last++
	return n.last
}

func (n *numbers) put(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.free = append(n.free, number)
}

// anyExcludes reports whether one of kvs excludes a mode.
func anyExcludes(dir string, kvs []*mvccpb.KeyValue, mode driver.Mode) bool {
	return slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return excludes(dir, kv, mode) })
}

// excludes reports whether kv contends for the lock of dir in a mode that excludes the given one. This is the whole rule: a key has the lock
// if no key before it excludes its mode.
func excludes(dir string, kv *mvccpb.KeyValue, mode driver.Mode) bool {
	return isContender(dir, kv) && mode.Excludes(modeOf(dir, kv))
}

// isContender reports whether kv contends for the lock of dir itself, and not for a lock with a name below.
func isContender(dir string, kv *mvccpb.KeyValue) bool {
	last := kv.Key[min(len(dir), len(kv.Key)):]
	for _, c := range last {
		if c == '/' || c == 0 { // below, or the record of a name below
			return isRecipe(last)
		}
	}
	return true
}

// The last part of a key, behind dir, tells the mode. Keys of this driver begin there with a mark or, in the mode Exclusive, with the lease.
// RWMutex of etcd's package recipe makes keys of two parts. RWMutex.RLock waits for all keys that begin with "write", and RWMutex.Lock for
// all keys.
const (
	readMark  = "+read-" // sorts before all digits and letters: see keyRange
	writeMark = "write-"

	recipeRead  = "read/"  // and a time in nanoseconds
	recipeWrite = "write/" // and a time in nanoseconds
	recipeTime  = 19       // digits
)

// rule is what a mode means to a request for a lock. driver.Mode.Excludes says
// which keys exclude it.
type rule struct {
	mark         string // what the last part of the key begins with; permits have a longer one
	forRead      bool   // the range that it reads and watches has no Reads, and not its own key
	adds         bool   // the permits of all keys before its own count, and so does the record of the name
	confirms     bool   // a look confirms a grant by events, which report neither its own key nor a new limit
	shared       bool   // several clients may hold the name
	besideRecipe bool   // clients of RWMutex overlook its key if it is put again
}

// rules has the rule of each mode.
var rules = [...]rule{
	driver.Exclusive: {},
	driver.Read:      {mark: readMark, forRead: true, confirms: true, shared: true, besideRecipe: true},
	driver.Write:     {mark: writeMark, besideRecipe: true},
	driver.Permit:    {adds: true, confirms: true, shared: true},
}

func (h *hold) rule() *rule { return &rules[h.request.Mode] }

// mark returns what the last part of the key begins with.
func (h *hold) mark() string {
	if h.rule().adds {
		return markOfPermits(h.request.Permits, h.limit)
	}
	return h.rule().mark
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

// isRecipe reports whether the last part of a key is RWMutex's, and not that of a lock with a name below.
func isRecipe(last []byte) bool {
	time, ok := bytes.CutPrefix(last, []byte(recipeRead))
	if !ok {
		time, ok = bytes.CutPrefix(last, []byte(recipeWrite))
	}
	return ok && len(time) == recipeTime && len(bytes.Trim(time, "0123456789")) == 0
}

// keyRange holds the keys of all contenders for a name that can exclude a mode. For a Read these are all but the Reads of this driver,
// so a thousand Reads cost each other nothing, neither in answers nor in the events of their watches. Or it holds one key.
type keyRange struct {
	dir      string
	forRead  bool
	ofRecord bool // of the key dir, which is a part of the record of a name
	ends     bool // of the key dir, which is a contender's or a latch: watched for its deletion alone
}

func (r keyRange) from() string {
	if r.forRead {
		return r.dir + "0"
	}
	return r.dir
}

// rest is the option that makes a request for the key from() one for the range.
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

// read makes op, a read of no key yet, a read of the range. It does what from and rest do with fewer allocations.
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

// errOverlooked says that a key was not put again, because a client of RWMutex would overlook it.
var errOverlooked = fmt.Errorf("a client of RWMutex has come since, and would overlook a key that is put again: %w", errors.ErrUnsupported)

// overlookedByNobody are the conditions for putting the key of a Read or Write again: RWMutex waits for keys with a smaller modification
// revision than its own, so no key of RWMutex may be younger. A key that RWMutex puts later waits as ever.
func (h *hold) overlookedByNobody() []clientv3.Cmp {
	if !h.rule().besideRecipe {
		return nil
	}
	older := func(recipe string) clientv3.Cmp {
		return clientv3.Compare(clientv3.CreateRevision(h.dir()+recipe), "<", h.revision).WithPrefix()
	}
	return []clientv3.Cmp{older(recipeRead), older(recipeWrite)}
}
