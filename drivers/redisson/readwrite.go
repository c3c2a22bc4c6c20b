package redisson

import (
	"strings"

	"github.com/go-dsync/dsync/driver"
)

// Read-write locks are Redisson's RReadWriteLock: see rw.lua and the other scripts that begin with rw. They share the hash at their name with
// the plain and the fair lock, and have a channel of their own.
const (
	readWritePrefix = "redisson_rwlock" // of the channel
	intentPrefix    = "dsync_intent"
	writeSuffix     = ":write" // of the field of a Write hold
	readSuffix      = ":read"  // of the field of a Read hold, by which rwreaders.lua knows it from one of Redisson
)

var (
	readScripts      = scripts{acquire: readScript, release: readReleaseScript}
	writeScripts     = scripts{acquire: writeScript, release: writeReleaseScript}
	fairReadScripts  = scripts{acquire: readScript, release: fairReadReleaseScript}
	fairWriteScripts = scripts{acquire: writeScript, release: fairWriteReleaseScript}
)

// scriptsOf returns the scripts of a mode.
func (d *Driver) scriptsOf(m driver.Mode) scripts {
	switch fair := d.options.Fair; {
	case m == driver.Read && fair:
		return fairReadScripts
	case m == driver.Read:
		return readScripts
	case m == driver.Write && fair:
		return fairWriteScripts
	case m == driver.Write:
		return writeScripts
	case m == driver.Permit:
		return permitScripts
	}
	return d.scripts
}

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

// channelOf returns the channel that tells the end of a hold. Elsewhere stands for the channel of the other kind of lock.
func channelOf(m driver.Mode, name string, elsewhere bool) string {
	if m == driver.Permit {
		return prefixName(permitPrefix, name)
	}
	if (m == driver.Exclusive) == elsewhere {
		return prefixName(readWritePrefix, name)
	}
	return prefixName(channelPrefix, name)
}

// intends reports whether a request that is not granted leaves an intent to write: further readers then wait.
func intends(r *driver.Request) bool { return r.Mode == driver.Write && !r.NoWait }

// readWriteKeys adds the keys of the scripts for a Read or Write hold, with the key of the intents if the script has to look at them.
func readWriteKeys(r *driver.Request, intents bool, keys []string) []string {
	if r.Mode == driver.Read {
		keys = append(keys, timeoutKey(r.Mode, r.Name, r.Hold))
	}
	if intents {
		keys = append(keys, prefixName(intentPrefix, r.Name))
	}
	return keys
}

// readWriteArgs adds the arguments of the script that acquires a Read or Write hold, without the tokens'.
func (o *op) readWriteArgs(d *Driver, args []string) []string {
	r := o.request
	args = append(args, fieldOf(r.Mode, r.Hold), d.milliseconds(r.TTL))
	if r.Mode == driver.Read {
		return args
	}
	how := "wait"
	if r.NoWait {
		how = "try"
	}
	return append(args, how, readPrefix(r.Name))
}

// readWriteReleaseArgs adds the arguments of the script that ends a Read or Write hold. The script also tells the first waiter for the fair
// lock of the name.
func (d *Driver) readWriteReleaseArgs(r *driver.Request, args []string) []string {
	args = d.wordArgs(append(args, fieldOf(r.Mode, r.Hold), readPrefix(r.Name), prefixName(readWritePrefix, r.Name)))
	if !d.options.Fair {
		return args
	}
	return d.tellArgs(r.Name, d.fairKeys(r.Name, args))
}

// own returns how many subscriptions of this driver receive the message about the end of a hold.
func (d *Driver) own(r *driver.Request) int {
	if r.Mode == driver.Exclusive {
		return d.topics.Own(r.Name)
	}
	return d.topics.OwnOfChannel(channelOf(r.Mode, r.Name, false))
}
