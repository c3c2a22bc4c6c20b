// Package cas makes a complete [driver.Driver] from a store whose only
// operation is to replace a value if the value has not changed. DynamoDB,
// Consul's keys, Kubernetes objects, NATS, object stores with If-Match and
// tables in any database are such stores.
//
// The author of a backend implements [Store], which has three methods, and
// calls [New]:
//
//	func init() {
//		driver.Register("mystore", func(ctx context.Context, c *driver.Config) (driver.Driver, error) {
//			store, err := dial(ctx, c.URL)
//			if err != nil {
//				return nil, err
//			}
//			return cas.New(store, cas.Options{Name: "mystore", NoTokens: !c.Fenced}), nil
//		})
//	}
//
// The driver has exclusive locks, read-write locks and permits with leases,
// fencing tokens, Inspect, ForceUnlock and SetLimit. Clients get a lock in the
// order of their arrival ([driver.FIFOByClient]). The driver also has List if
// the store is a [Lister]. If the store is a [Notifier], it also has Watch, and
// its waiters are notified of a release immediately. Names can move to other
// backends and back (see package drivers/migrate).
//
// # Testing
//
// Package conformance tests whether the driver, and so the store, keeps its
// promises. Package conformance/castest puts faults between the driver and the
// store. The URL lets the suite start processes of this test binary.
//
//	func TestMain(m *testing.M) {
//		conformance.RunWorker()
//		m.Run()
//	}
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend {
//			return &conformance.Backend{
//				URL: "mystore://" + addr,
//				New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
//					s, link := castest.Disturb(tb, store) // or package wire, for stores with a network
//					return cas.New(s, options), link
//				},
//				Expire: func(tb testing.TB, name string) {
//					d := cas.New(store, options)
//					defer d.Close(tb.Context())
//					_ = d.ForceUnlock(tb.Context(), name)
//				},
//			}
//		}})
//	}
//
// Without Options.Rising, run the suite a second time with Options.NoTokens,
// because only then are records deleted.
//
// # How it works
//
// Each name has one record, which holds the leases of the name and the queue of
// its waiters. Every change reads the record, decides, and writes the record if
// its version is still the same. A renewal and a release each require one
// write. Acquiring a free name requires one write if this driver was the last
// to use the name, or if records of free names are deleted. Otherwise it also
// requires a read. A waiter writes its place into the queue, renews the place
// every few seconds, and reads the record every Options.Poll or when it is
// notified. So no client that arrives later overtakes it, and a waiter that has
// vanished loses its place.
//
// Callers of one driver that request the same name share these requests, so a
// crowd in a process costs the store little more than a single waiter. If the
// store is a [Batcher], one write renews many holds.
//
// # Expiry
//
// If the store has a clock (Options.Clock), each Read returns the time at the
// store and the time at which the record was written. A hold ends when its TTL
// has passed since then, by this one clock. If the store has no clock, a
// contender takes over the name after it has seen the hold unchanged for the
// hold's TTL, by its own clock ([driver.Observed]). The clocks of two machines
// are never compared. The price is that a contender that arrives after the
// holder has died waits a full TTL.
//
// # Fencing tokens
//
// If the versions of the store rise (Options.Rising), they are the tokens.
// Otherwise the record keeps the last token, so the record lasts as long as the
// store. With Options.Rising or Options.NoTokens the record of a free name is
// deleted.
//
// # Requests without an answer
//
// An unanswered write may be carried out later, as long as the record has the
// version that the write requires. The driver prevents this in the background
// with its own write, after which no record has that version. To prevent a
// write that requires the absence of a record, the driver writes an empty
// record. The empty record stays for an hour of the store's clock, or
// permanently if there is no clock.
package cas

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"
)

// Store keeps one record for each name, with a version. All methods may be
// called concurrently. They return soon after the end of their context.
//
// An error that matches fs.ErrPermission or errors.ErrUnsupported means that
// the store refused the request, and that repeating it is useless. The driver
// passes it to the user unchanged. Read and List may return any other error,
// which the user sees as driver.ErrUnavailable. Errors never contain a
// password.
//
// The driver does not close the store. An opener that dials a server returns a
// driver of its own type, which embeds *Driver and whose Close also closes the
// connections.
type Store interface {
	// Read returns the record of a name, or an Entry without a Version if there
	// is none. Read sees every write, by any client, that was answered before
	// Read was called. A name is any text of up to 1 KiB. The store encodes it
	// so that different names never collide, by a cryptographic hash if
	// necessary.
	Read(ctx context.Context, name string) (Entry, error)

	// Write replaces the record if it still has the given version, in one step,
	// and returns the version of the new record. With the version "" Write
	// creates a record if there is none. If the record has another version,
	// Write changes nothing and returns ErrChanged. An error that matches
	// driver.ErrUnavailable means that the write was not carried out, and never
	// will be. After any other error it may be carried out at any time.
	//
	// Neither the store nor its client library sends a request again after a
	// lost answer, because the second attempt would find the version that the
	// first one wrote. net/http, for one, repeats a request that has the header
	// Idempotency-Key.
	//
	// A version is never used twice for a name, not even after a Delete or a
	// restart of the server. No two records have the same value, so a store
	// without versions may use the value itself, or a cryptographic hash of it,
	// as the version.
	Write(ctx context.Context, name string, value []byte, version string) (next string, err error)

	// Delete removes the record if it still has the given version. It returns
	// the same errors as Write.
	Delete(ctx context.Context, name, version string) error
}

// Entry is a record that was read from a Store.
type Entry struct {
	Value   []byte
	Version string // "" if there is no record

	// With Options.Clock, both are times of the store's clock. Written is the
	// time when the present version was written, or any time since the call to
	// Write, and is zero if there is no record. Now is the time when the record
	// was read, or any time since the call to Read, and is set even if there is
	// no record. If the clock has a coarse unit, the store rounds Written up
	// and Now down.
	Written, Now time.Time
}

// ErrChanged is returned by Write and Delete if the record has a different
// version.
var ErrChanged = errors.New("the record has another version")

// Notifier is an optional interface of a Store that reports changes.
type Notifier interface {
	// Notify calls changed shortly after each change of the record of name,
	// until stop is called. It also calls changed whenever the store begins to
	// report changes to this client, at first and after each outage, because an
	// earlier change may have gone unnoticed. changed does not block. After
	// stop has returned, changed is no longer called. Notify does not wait for
	// the store.
	Notify(name string, changed func()) (stop func(), err error)
}

// Lister is an optional interface of a Store that can list its records.
type Lister interface {
	// List yields the records of all names that begin with prefix, each at
	// least once if it exists throughout the call. It may yield other records,
	// because the driver checks the name in the record. A store that knows
	// names only by their hash yields all records, but nothing that the driver
	// has not written. An error is the last element that List yields.
	List(ctx context.Context, prefix string) iter.Seq2[Entry, error]
}

// Batcher is an optional interface of a Store that can replace many records in
// one request.
type Batcher interface {
	// WriteAll does for each of the writes what Write would do, and sets Next
	// or Err. There are at most Options.Batch writes. Each is for an existing
	// record, and no two are for the same name. An error of WriteAll applies to
	// every write.
	WriteAll(ctx context.Context, writes []*Write) error
}

// Write has the arguments and results of a Store.Write.
type Write struct {
	Name    string
	Value   []byte
	Version string
	Next    string
	Err     error
}

// Options describe the capabilities of a store. They are the same for all its
// clients.
type Options struct {
	Name string // of the driver in driver.Info; required

	// Clock means that Read returns Written and Now. Without a clock, a
	// contender detects expiry by observing the hold for its TTL
	// ([driver.Observed]).
	Clock bool

	// Rising means that versions are decimal numbers up to 2^62, and that each
	// version of a name is larger than all earlier ones, including versions
	// before a Delete. The driver then uses the versions as fencing tokens.
	Rising bool

	NoTokens bool // no fencing tokens: the opposite of driver.Config.Fenced

	// Plain is for stores whose records have a different format, with room for
	// one hold and no queue. The driver has only exclusive locks, granted in
	// any order, without tokens. The store then converts between its records
	// and values, which are JSON objects:
	//
	//	{"format": 1, "name": "x", "nonce": "n2", "holds": [
	//		{"hold": "h", "owner": "o", "ttl": 1000000000, "since": "2026-01-02T15:04:05Z", "beat": "n1"}]}
	//
	// The TTL is in nanoseconds. The write renews the hold if beat is the
	// nonce, and otherwise leaves its end as it is. The hold that Read returns
	// expires one TTL after Entry.Written. A free name has no holds. A record
	// is never removed. Delete only removes its hold.
	Plain bool

	// Poll is the interval at which a waiter reads the record if the store is
	// not a Notifier. Each driver makes one such read for all its waiters of a
	// name. The default is 100 ms. Waiters that have other waiters ahead of
	// them read less often, by a factor of up to 50.
	Poll time.Duration

	// Timeout bounds each request to the store. The default is 5 s.
	Timeout time.Duration

	// Batch bounds the writes in a request of a Batcher. The default is 1000.
	Batch int

	MinTTL time.Duration // of leases, for slow stores; 0 means no bound
}

// withDefaults returns the options with their defaults.
func (o Options) withDefaults() Options {
	o.Poll = cmp.Or(o.Poll, 100*time.Millisecond)
	o.Batch = cmp.Or(o.Batch, 1000)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.NoTokens = o.NoTokens || o.Plain
	return o
}
