package redisson

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
)

// Prefixes of the keys and channels that belong to a lock.
const (
	channelPrefix = "redisson_lock__channel" // also in turn.lua and batch.lua
	tokenPrefix   = "redisson_lock_token"    // the counter of Redisson's fenced lock
	fencePrefix   = "dsync_fence"            // of the sequences of tokens
	turnPrefix    = "dsync_turn"             // also in turn.lua
	// the value is the floor of the tokens; also in batch.lua
	markPrefix        = "dsync_moved"
	shardedProbe      = "0" // an unused channel
	clusterSlots      = 16384
	errNameInClusters = "name %q cannot be used in a cluster, where the keys of a lock must share a slot: %w"
)

// errBraces is returned for a name whose braces do not form a hash tag.
// Redisson adds braces only to names without an opening brace.
var errBraces = fmt.Errorf("its braces do not enclose a hash tag: %w", errors.ErrUnsupported)

// errLatchBraces is returned in a cluster for a latch whose name has braces.
// Redisson adds braces to such names too.
var errLatchBraces = fmt.Errorf("a latch must not have braces in its name: %w", errors.ErrUnsupported)

// prefixName applies Redisson's rule for the keys and channels of a name.
func prefixName(prefix, name string) string {
	if strings.IndexByte(name, '{') >= 0 {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// keyPrefixes are the prefixes of keys that belong to locks, and to other named
// objects of Redisson and of dsync. The last prefix is from earlier clients.
var keyPrefixes = []string{fencePrefix, turnPrefix, markPrefix, tokenPrefix, queuePrefix, timesPrefix,
	"redisson_unlock_latch", intentPrefix, latchPrefix, latchPrefix2, "dsync_holder"}

// readHold is part of the keys of the holds of Redisson's read locks.
const readHold = ":rwlock_timeout:"

// checkName returns an error for a name that shares keys or channels with
// another name, for a name that is itself a key of a lock, and for a name whose
// keys are in several slots.
func (d *Driver) checkName(name string) error {
	if strings.IndexByte(name, '{') >= 0 {
		if inner, is := strings.CutPrefix(name, "{"); is && strings.HasSuffix(inner, "}") && strings.IndexByte(inner, '{') < 0 {
			return fmt.Errorf("name %q cannot be used, because its braces enclose all of it: %q has the same channels and, except for the lock, the same keys: %w",
				name, strings.TrimSuffix(inner, "}"), errors.ErrUnsupported)
		}
		for _, prefix := range keyPrefixes {
			if rest, is := strings.CutPrefix(name, prefix); is && rest[0] == ':' {
				return fmt.Errorf("name %q cannot be used, because a key of another lock has that name, %s of %s: %w",
					name, prefix, rest[1:], errors.ErrUnsupported)
			}
		}
		if strings.HasSuffix(name, ":"+endsSuffix) {
			return fmt.Errorf("name %q cannot be used, because a key of permits has that name: %w", name, errors.ErrUnsupported)
		}
		if strings.Contains(name, readHold) {
			return fmt.Errorf("name %q cannot be used, because a key of a read-write lock has that name: %w", name, errors.ErrUnsupported)
		}
	}
	if d.cluster && slotOf(name) != slotOf(prefixName(channelPrefix, name)) {
		return fmt.Errorf(errNameInClusters, name, errBraces)
	}
	return nil
}

// sequenceOf returns the key of the sequence of tokens that all names of a slot
// share. So a name leaves nothing behind when it is free. In a cluster, the key
// is in the same slot.
func (d *Driver) sequenceOf(name string) string {
	key := make([]byte, 0, 64)
	key = append(append(key, d.sequences...), '{')
	key = strconv.AppendUint(key, uint64(slotTags()[slotOf(name)]), tagBase)
	return string(append(key, '}'))
}

// tagBase is the base of the numbers that are hash tags.
const tagBase = 36

// slotTags returns for each slot the first number that, as a text, is a hash
// tag of the slot.
var slotTags = sync.OnceValue(func() *[clusterSlots]uint32 {
	var tags [clusterSlots]uint32
	var text [8]byte
	for n, missing := uint32(1), clusterSlots; missing > 0; n++ {
		if slot := slotOf(string(strconv.AppendUint(text[:0], uint64(n), tagBase))); tags[slot] == 0 {
			tags[slot] = n
			missing--
		}
	}
	return &tags
})

// slotOf is Redis Cluster's slot of a key: the CRC-16 of the hash tag, or of
// the whole key.
func slotOf(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if length := strings.IndexByte(key[open+1:], '}'); length > 0 {
			key = key[open+1 : open+1+length]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return crc % clusterSlots
}

var crcTable = func() (table [256]uint16) {
	const polynomial = 0x1021 // CRC-16/XMODEM
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ polynomial
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// Read-write locks are Redisson's RReadWriteLock: see rw.lua. They share the
// hash at their name with the plain lock, but have a separate channel.
const (
	readWritePrefix = "redisson_rwlock" // of the channel
	intentPrefix    = "dsync_intent"
	writeSuffix     = ":write" // of the field of a Write hold
	// of the field of a Read hold; rwreaders.lua uses it to distinguish the
	// hold from a hold of Redisson
	readSuffix = ":read"
)

// fieldOf returns the field of a hold in the hash of its lock.
func fieldOf(m driver.Mode, hold string) string {
	switch m {
	case driver.Write:
		return hold + writeSuffix
	case driver.Read:
		return hold + readSuffix
	}
	return hold
}

// readPrefix begins the keys of the Read holds of a name.
func readPrefix(name string) string {
	if strings.IndexByte(name, '{') >= 0 {
		return name + ":"
	}
	return "{" + name + "}:"
}

// timeoutKey returns the key of a Read hold, or "" in another mode.
func timeoutKey(m driver.Mode, name, hold string) string {
	if m != driver.Read {
		return ""
	}
	return readPrefix(name) + fieldOf(m, hold) + readHold + "1"
}

// channelOf returns the channel that reports the end of a hold. elsewhere
// selects the channel of the other kind of lock.
func channelOf(m driver.Mode, name string, elsewhere bool) string {
	if m == driver.Permit {
		return prefixName(permitPrefix, name)
	}
	if (m == driver.Exclusive) == elsewhere {
		return prefixName(readWritePrefix, name)
	}
	return prefixName(channelPrefix, name)
}

// intends reports whether a request that is not granted leaves an intent to
// write, which makes new readers wait.
func intends(r *driver.Request) bool { return r.Mode == driver.Write && !r.NoWait }

// readWriteKeys adds the keys of the scripts for a Read or Write hold, with the
// key of the intents if the script must read them.
func readWriteKeys(r *driver.Request, intents bool, keys []string) []string {
	if r.Mode == driver.Read {
		keys = append(keys, timeoutKey(r.Mode, r.Name, r.Hold))
	}
	if intents {
		keys = append(keys, prefixName(intentPrefix, r.Name))
	}
	return keys
}

// readWriteArgs adds the arguments of the script that acquires a Read or Write
// hold, except the arguments for tokens.
func (o *op) readWriteArgs(d *Driver, args []string) []string {
	r := o.request
	args = append(args, fieldOf(r.Mode, r.Hold), redisdriver.TTLText(r.TTL))
	if r.Mode == driver.Read {
		return args
	}
	how := "wait"
	if r.NoWait {
		how = "try"
	}
	return append(args, how, readPrefix(r.Name))
}

// readWriteReleaseArgs adds the arguments of the script that ends a Read or
// Write hold and notifies the first waiter for the fair lock of the name.
func (d *Driver) readWriteReleaseArgs(r *driver.Request, args []string) []string {
	args = d.wordArgs(append(args, fieldOf(r.Mode, r.Hold), readPrefix(r.Name), prefixName(readWritePrefix, r.Name)))
	if !d.options.Fair {
		return args
	}
	return d.tellArgs(r.Name, d.fairKeys(r.Name, args))
}

// own returns the number of this driver's subscriptions that receive the
// message about the end of a hold.
func (d *Driver) own(r *driver.Request) int {
	if d.topics.Quiet() {
		return 0
	}
	return d.topics.Own(channelOf(r.Mode, r.Name, false))
}

// process is the host name and the process id.
var process = func() string {
	host, _ := os.Hostname() // for people; a lock also works without it
	return fmt.Sprintf("%s:%d", strings.ReplaceAll(host, "\n", " "), os.Getpid())
}()

// valueMark begins the value of a hold with tokens. The value is in the hash of
// the lock, or at the key of a Read. It consists of "#" and the last token and,
// on separate lines, the owner (empty if it equals the hold), the process and
// the note. Other holds have the count 1, as in Redisson, whose scripts skip a
// value that is not a number.
const valueMark = "#"

// holderText returns the text about a holder, which follows the token in the
// value of its hold.
func holderText(r *driver.Request) string {
	owner := r.Owner
	if owner == r.Hold {
		owner = ""
	}
	return "\n" + strings.ReplaceAll(owner, "\n", " ") + "\n" + process + "\n" + r.Note
}

// readValue adds the content of a hold's value to its status.
func readValue(value string, status *driver.Status) {
	value, is := strings.CutPrefix(value, valueMark)
	fields := strings.SplitN(value, "\n", 4)
	if !is || len(fields) != 4 {
		return
	}
	if status.Mode != driver.Read { // another reader may have the last token
		status.Token, _ = strconv.ParseUint(fields[0], 10, 64)
	}
	if status.Owner = fields[1]; status.Owner == "" {
		status.Owner = status.Hold
	}
	status.Process, status.Note = fields[2], fields[3]
}
