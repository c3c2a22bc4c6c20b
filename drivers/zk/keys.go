package zk

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-dsync/dsync/driver"
)

const (
	guidPrefix = "_c_"
	hexDigits  = "0123456789ABCDEF"
	seqDigits  = 10
	guidSize   = 16
)

// infixes are the parts of contenders' names before the sequence number that
// show the mode. Curator's infixes come first, in the order of the modes, and
// the driver uses them too. The infixes of kazoo, and of Curator's LeaderLatch,
// follow. The infix of Permit is in the names of leases.
var infixes = [...]struct {
	text string
	mode driver.Mode
}{
	driver.Exclusive: {queueInfix, driver.Exclusive},
	driver.Read:      {"__READ__", driver.Read},
	driver.Write:     {"__WRIT__", driver.Write},
	driver.Permit:    {"lease-", driver.Permit},
	{"__lock__", driver.Exclusive},
	{"__rlock__", driver.Read},
	{leaderLatchInfix, driver.Exclusive},
}

// Children of the node of a name with permits. Curator's
// InterProcessSemaphoreV2 has the first two: an InterProcessMutex, and one node
// for each permit. The third prevents the removal of the name's node, whose
// data is the limit, together with the last permit.
const (
	queuePart  = "locks"
	leasesPart = "leases"
	keptPart   = "%limit" // no name has a path with this part
)

const (
	queueInfix       = "lock-"  // also of contenders in the queue for permits
	leaderLatchInfix = "latch-" // of Curator's LeaderLatch
)

func encode(chroot, name string) string {
	b := make([]byte, 0, len(chroot)+1+len(name))
	b = append(b, chroot...)
	for start := 0; start <= len(name); {
		end := len(name)
		for i := start + 1; i < len(name)-1; i++ {
			if name[i] == '/' {
				end = i
				break
			}
		}
		b = append(b, '/')
		part := name[start:end]
		b = appendPart(b, part, chroot == "" && start == 0)
		if start > 0 && end == len(name) && (part == queuePart || part == leasesPart) {
			b = escapeLast(b)
		}
		start = end + 1
	}
	return string(b)
}

// appendPart appends a part of a path. top is set for the first part of a whole
// path, where "zookeeper" is reserved.
func appendPart(b []byte, part string, top bool) []byte {
	if part == "." || part == ".." {
		return append(b, strings.ReplaceAll(part, ".", "%2E")...)
	}
	begin := len(b)
	for rest := part; rest != ""; {
		r, width := utf8.DecodeRuneInString(rest)
		if r == '%' || r == '/' || !allowed(r) {
			for _, c := range []byte(rest[:width]) {
				b = append(b, '%', hexDigits[c>>4], hexDigits[c&15])
			}
		} else {
			b = append(b, rest[:width]...)
		}
		rest = rest[width:]
	}
	if _, ok := contenderOf(part); ok || isBase(part) {
		b = escapeLast(b)
	}
	if top && string(b[begin:]) == "zookeeper" {
		b = append(b[:begin], "%7Aookeeper"...)
	}
	return b
}

// escapeLast writes the last byte as %XX.
func escapeLast(b []byte) []byte {
	last := b[len(b)-1]
	return append(b[:len(b)-1], '%', hexDigits[last>>4], hexDigits[last&15])
}

// allowed reports whether ZooKeeper accepts a rune in a path.
func allowed(r rune) bool {
	switch {
	case r < 0x20, 0x7f <= r && r <= 0x9f, 0xd800 <= r && r <= 0xf8ff, 0xfff0 <= r && r <= 0xffff:
		return false
	}
	return r <= 0xffff // the server checks UTF-16, and finds surrogates in the others
}

func checkChroot(path string) error {
	if path == "" {
		return nil
	}
	if !strings.HasPrefix(path, "/") {
		return fmt.Errorf("zk: the chroot %q does not begin with a slash", path)
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		bad := part == "" || part == "." || part == ".." || !utf8.ValidString(part)
		for _, r := range part {
			bad = bad || !allowed(r)
		}
		if bad {
			return fmt.Errorf("zk: the chroot %q is not a path that ZooKeeper accepts", path)
		}
	}
	return nil
}

// contender is a node that waits in the queue for a name.
type contender struct {
	child string // the name of the node
	mode  driver.Mode
	seq   int32
}

// contenderOf returns the contender of any library that a child represents.
// Neither a mark nor the node that a mark leaves behind is a contender.
func contenderOf(child string) (c contender, ok bool) {
	if isBase(child) {
		return contender{}, false
	}
	head := strings.TrimRight(child, "0123456789")
	digits := len(child) - len(head)
	positive, negative := strings.CutSuffix(head, "-")
	for _, infix := range infixes {
		number := ""
		switch {
		case negative && strings.HasSuffix(positive, infix.text) && (digits == seqDigits || digits == seqDigits-1):
			number = child[len(positive):]
		case strings.HasSuffix(head, infix.text) && digits == seqDigits:
			number = child[len(head):]
		default:
			continue
		}
		n, err := strconv.ParseInt(number, 10, 32)
		return contender{child, infix.mode, int32(n)}, err == nil
	}
	return contender{}, false
}

// before reports whether a contender comes before another one. The driver makes
// no nodes with the largest number or a negative number (errLastNumber). Such
// nodes of other libraries come last. If a Curator thread with the write lock
// acquires the read lock, it makes a node with the number of its writer's node.
// Otherwise, equal numbers occur only if nodes were made by hand.
func (c contender) before(other contender) bool {
	switch {
	case c.seq != other.seq:
		return c.seq-other.seq < 0
	case (c.mode == driver.Read) != (other.mode == driver.Read):
		return other.mode == driver.Read
	}
	return c.child < other.child
}

// withoutGUID returns the name of a contender's node, starting with the infix.
func withoutGUID(child string) string {
	at := 0
	for _, infix := range infixes {
		at = max(at, strings.LastIndex(child, infix.text))
	}
	return child[at:]
}

// newPrefix returns the beginning of a new node's name: the form of Curator and
// go-zookeeper, with a guid of 128 random bits.
func newPrefix(infix string) string {
	var guid [guidSize]byte
	rand.Read(guid[:]) // never fails
	b := make([]byte, 0, len(guidPrefix)+2*len(guid)+1+len(infix))
	b = append(b, guidPrefix...)
	b = hex.AppendEncode(b, guid[:])
	b = append(b, '-')
	return string(append(b, infix...))
}

// sibling returns the path of a node that was made together with another node,
// and is i nodes after it.
func sibling(node string, i int) string {
	if i == 0 {
		return node
	}
	at := strings.LastIndexByte(node, '/') + 1
	first, _ := contenderOf(node[at:])
	head := strings.TrimSuffix(node, sequence(first.seq))
	return head + sequence(first.seq+int32(i))
}

// sequence writes a sequence number as the server does.
func sequence(n int32) string { return fmt.Sprintf("%0*d", seqDigits, n) }

// nameNodes remembers the nodes of names, which are the parents of the
// contenders' nodes.
type nameNodes struct {
	mu    sync.Mutex
	known map[string]nameNode
}

// nameNode is the known state of a name's node.
type nameNode struct {
	there   bool  // the node existed when last seen, so no call tries to create it
	crowded int64 // the time until which other clients are likely to wait for the name
}

const maxNameNodes = 4096

// change updates the known state of a name's node.
func (ns *nameNodes) change(dir string, to func(n nameNode) nameNode) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := to(ns.known[dir])
	if n == (nameNode{}) {
		delete(ns.known, dir)
		return
	}
	if ns.known == nil || len(ns.known) >= maxNameNodes {
		ns.known = make(map[string]nameNode)
	}
	ns.known[dir] = n
}

func (ns *nameNodes) exists(dir string) bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.known[dir].there
}

func (ns *nameNodes) add(dir string) {
	ns.change(dir, func(n nameNode) nameNode { n.there = true; return n })
}

func (ns *nameNodes) remove(dir string) {
	ns.change(dir, func(n nameNode) nameNode { n.there = false; return n })
}

// crowd records that other clients waited for a name, or that a caller of this
// driver waited for other clients.
func (ns *nameNodes) crowd(dir string, until int64) {
	ns.change(dir, func(n nameNode) nameNode { n.crowded = until; return n })
}

// isCrowded reports whether other clients are likely to wait for a name.
func (ns *nameNodes) isCrowded(dir string, now int64) bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return now < ns.known[dir].crowded
}

// The permanent state of a name is stored in the names of children, so every
// listing of the contenders includes it.
const (
	// followed by the last token, the id of Loosen if there is one, and the
	// holder's node name without its guid
	sealPrefix = "dsync-seal-"
	markPrefix = "dsync-mark-" // followed by the base of the tokens, and baseSuffix
	basePrefix = "dsync-base-" // the same without a mark

	// Libraries that treat every child as a contender see the child as the last
	// contender.
	baseSuffix = "-lock-2147483647"
)

// sealOwner is the holder of a sealed name, as reported by Inspect.
const sealOwner = "seal"

// record is the permanent state of a name.
type record struct {
	seal string // the child, if the name is sealed
	last uint64 // token, if the name is sealed

	marked bool
	base   uint64 // added to the tokens
	child  string // the child with the base, if there is one
}

func sealName(last uint64, node string) string {
	return sealPrefix + strconv.FormatUint(last, 10) + "-" + withoutGUID(node)
}

// withBase returns the record with a base, and whether the name is marked.
func (r record) withBase(base uint64, marked bool) record {
	prefix := basePrefix
	if marked {
		prefix = markPrefix
	}
	r.marked, r.base, r.child = marked, base, ""
	if marked || base > 0 {
		r.child = prefix + strconv.FormatUint(base, 10) + baseSuffix
	}
	return r
}

// sealOf returns the last token of a name if a child is the seal of the name.
func sealOf(child string) (last uint64, ok bool) {
	if _, contends := contenderOf(child); !contends {
		return 0, false
	}
	return numberIn(child, sealPrefix)
}

// numberIn returns the number in the name of a child after a prefix.
func numberIn(child, prefix string) (uint64, bool) {
	rest, ok := strings.CutPrefix(child, prefix)
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// baseOf returns the base of the tokens of a name if the child has one, and
// whether the child is a mark.
func baseOf(child string) (base uint64, marked, ok bool) {
	if !isBase(child) {
		return 0, false, false
	}
	if base, marked = numberIn(child, markPrefix); marked {
		return base, true, true
	}
	base, ok = numberIn(child, basePrefix)
	return base, false, ok
}

// isBase reports whether a child looks like a mark, or like the node that a
// mark leaves behind.
func isBase(child string) bool {
	return strings.HasSuffix(child, baseSuffix) && (strings.HasPrefix(child, markPrefix) || strings.HasPrefix(child, basePrefix))
}

// looseName returns the name that the seal of the record has with the given id.
func (r record) looseName(id string) string {
	return sealPrefix + strconv.FormatUint(r.last, 10) + "-" + hex.EncodeToString([]byte(id)) + "-" + withoutGUID(r.seal)
}

// value describes the owner of a node, for people.
type value struct {
	Owner string    `json:"owner,omitempty"`
	Host  string    `json:"host,omitempty"`
	Time  time.Time `json:"time"`
	Note  string    `json:"note,omitempty"`
	Hold  string    `json:"hold,omitempty"`
}
