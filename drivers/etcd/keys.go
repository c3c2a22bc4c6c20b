package etcd

import (
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

// rangeIn returns the keys that matter to h, below its dir.
func (h *hold) rangeIn(dir string) keyRange {
	return keyRange{dir: dir, forRead: h.request.Mode == driver.Read}
}

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
