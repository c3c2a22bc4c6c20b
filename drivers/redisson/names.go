package redisson

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Prefixes of the keys and channels that belong to a lock.
const (
	channelPrefix     = "redisson_lock__channel" // turn.lua and batch.lua have it too
	tokenPrefix       = "redisson_lock_token"    // the counter of Redisson's fenced lock
	fencePrefix       = "dsync_fence"            // of the sequences of tokens
	turnPrefix        = "dsync_turn"             // turn.lua has it too
	markPrefix        = "dsync_moved"            // the value is the floor of the tokens; batch.lua has it too
	shardedProbe      = "0"                      // a channel that nobody uses
	clusterSlots      = 16384
	errNameInClusters = "name %q cannot be used in a cluster, where the keys of a lock must share a slot: %w"
)

// errBraces names the fault of a name. Redisson derives other keys from a name by putting braces around the name, unless the name has an opening
// brace. So with braces that enclose nothing, or a closing brace alone, the keys are on different nodes.
var errBraces = fmt.Errorf("its braces do not enclose a hash tag: %w", errors.ErrUnsupported)

// errLatchBraces names the fault of a name of a latch: Redisson puts braces around names with braces, too.
var errLatchBraces = fmt.Errorf("it has braces, and is that of a latch: %w", errors.ErrUnsupported)

// prefixName is Redisson's rule for the keys and channels of a name.
func prefixName(prefix, name string) string {
	if strings.IndexByte(name, '{') >= 0 {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// keyPrefixes begin the keys that belong to locks, and to other things of
// Redisson and of dsync with a name. The last is one of earlier clients.
var keyPrefixes = []string{fencePrefix, turnPrefix, markPrefix, tokenPrefix, queuePrefix, timesPrefix,
	"redisson_unlock_latch", intentPrefix, latchPrefix, latchPrefix2, "dsync_holder"}

// readHold is part of the keys of the holds of Redisson's read locks.
const readHold = ":rwlock_timeout:"

// checkName returns an error for names that cannot be locked: names that share
// keys and channels with another name and keys of other names, since different
// names are different locks, and, in a cluster, names whose keys would live in
// different slots.
func (d *Driver) checkName(name string) error {
	if strings.IndexByte(name, '{') >= 0 {
		if inner, is := strings.CutPrefix(name, "{"); is && strings.HasSuffix(inner, "}") && strings.IndexByte(inner, '{') < 0 {
			return fmt.Errorf("name %q cannot be used, because its braces enclose all of it: %q has the same channels and the same keys beside the lock: %w",
				name, strings.TrimSuffix(inner, "}"), errors.ErrUnsupported)
		}
		for _, prefix := range keyPrefixes {
			if rest, is := strings.CutPrefix(name, prefix); is && rest[0] == ':' {
				return fmt.Errorf("name %q cannot be used, for it is that of a key which belongs to another lock, %s of %s: %w",
					name, prefix, rest[1:], errors.ErrUnsupported)
			}
		}
		if strings.HasSuffix(name, ":"+endsSuffix) {
			return fmt.Errorf("name %q cannot be used, for it is that of a key which belongs to permits: %w", name, errors.ErrUnsupported)
		}
		if strings.Contains(name, readHold) {
			return fmt.Errorf("name %q cannot be used, for it is that of a key which belongs to a read-write lock: %w", name, errors.ErrUnsupported)
		}
	}
	if d.cluster && slotOf(name) != slotOf(prefixName(channelPrefix, name)) {
		return fmt.Errorf(errNameInClusters, name, errBraces)
	}
	return nil
}

// sequenceOf returns the key of the sequence of tokens that all names of a slot
// share: nothing is left of a name, and in a cluster the key is in the slot too.
func (d *Driver) sequenceOf(name string) string {
	key := make([]byte, 0, 64)
	key = append(append(key, d.sequences...), '{')
	key = strconv.AppendUint(key, uint64(slotTags()[slotOf(name)]), tagBase)
	return string(append(key, '}'))
}

// tagBase is the base of the numbers that are hash tags.
const tagBase = 36

// slotTags returns for each slot the first number that, as a text, is a hash tag of the slot.
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

// slotOf is Redis Cluster's slot of a key: the CRC-16 of the hash tag, or of the whole key.
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
