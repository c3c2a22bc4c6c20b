// Package driver is the contract between package dsync and its backends.
//
// Only authors of drivers import the package. A driver implements [Driver] and
// [Lease], a handful of methods, and package dsync builds on them what is
// common to every backend: owners and reentrancy, the local queue, renewal, the
// loss of a lease on the local clock, error text, closing. Eleven numbered
// rules bind both sides; they stand at [Driver] (go doc driver.Driver). Package
// conformance checks them; a driver with a green run is done.
package driver

import (
	"context"
	"iter"
	"time"
)

// Driver is one backend. All methods may be called concurrently.
//
// # The rules
//
// Both sides are bound by these rules. "Hold" is [Request.Hold], the identity
// of one attempt.
//
//  1. Acquire returns a lease or an error, never both. Acquire, Renew, Release
//     and RenewAll return within a bounded time of the end of their ctx,
//     whatever the backend does. A request that cannot wait (NoWait) and is
//     refused returns [ErrLocked]. A wait that ended with ctx, with a refusal
//     as the last answer, returns an error that matches both ErrLocked and
//     ctx's; if ctx cut off a later request, ErrUnknown and ctx's: package
//     dsync remembers what Events.Waiting said. [ErrSealed] is returned at
//     once, also to calls that already wait, and concerns every [Mode] of the
//     name. So is [ErrLimit], with the limit that is kept when the backend is
//     asked; a call that waits returns it, too, when that limit has become
//     another one.
//  2. After an error of Acquire or Release the driver owns what may be left on
//     the backend. The driver cleans up by Hold, in the background and bounded
//     in number, until one of these is true: the backend said that the hold was
//     removed; the backend's answer was ordered behind the request in question
//     (a later request on the same connection), so that "absent" is definite;
//     the request in question was conditional on a state of the backend that
//     can never be again, such as an older version of a record; or the lease,
//     session or connection of the hold is over and send time + TTL +
//     [Info.LateFor] has passed. "Absent" read over another connection is not
//     definite: the request may still be on its way. (A
//     backend without an order can remember a removed Hold for a TTL, and
//     refuse the request that arrives late.) If the matter is not settled when
//     the call returns, the error matches [ErrUnknown]. Close ends unfinished
//     Acquires first (they return [ErrClosed] and leave the backend's queues),
//     then ends holds in few requests, then waits for clean-ups until its ctx
//     ends.
//  3. Release returns nil if this release ended the hold, also when an earlier,
//     unanswered request of the same release did; [ErrNotHeld] if the hold was
//     over before; any other error means that the outcome is unknown. Whatever
//     Release returns, the lease is dead from then on: never renewed, never
//     kept alive.
//  4. Expires is a time before which nobody can be granted the name in a mode
//     that excludes the hold ([Mode.Excludes]), unless somebody removes the
//     hold: the send time of an answered request, handled by the backend at or
//     after the grant, plus the TTL. No margin is taken off. Expires never
//     counts from the receipt of an answer, nor, after a grant that blocked for
//     more than a third of the TTL, from the send of the request that blocked:
//     after such a grant the driver
//     renews the hold before Acquire returns. Once passed, Expires never moves
//     again. Where a session carries the lock, Expires of a fixed lease is the
//     earlier of the session's end and grant + TTL. A driver lowers Expires
//     before it sends a renewal that makes a fixed lease shorter. If the TTL of
//     the session may be another one, the lease is a [SessionLease].
//  5. Renewals and keep-alives are conditional on Hold: they never create a
//     hold, never touch another one and never keep another one alive, also
//     where one key of the backend carries several Read holds: each ends by its
//     own time. An error other than ErrNotHeld changes nothing. A renewal that
//     arrives after a later one shortens nothing. A slow node delays only the
//     leases on that node.
//  6. Hold identifies, Owner does not: two Acquires of one client for one name
//     exclude each other, also with equal Owner, unless both are for Read, or
//     the limit admits both Permit requests. Holds of different modes exclude
//     each other although they may have different forms at the backend. But a
//     name is used for permits or for the other modes: of one that is used for
//     both nothing is promised but what each of the two uses promises alone.
//  7. What is held or queued on the backend inside an unfinished Acquire is
//     kept alive by the driver, and checked before Acquire returns.
//  8. Tokens rise: the first of a lease is above every token of every earlier
//     grant of the name (those of the incumbents that share the key included,
//     where they have tokens), the last is below every token of every later
//     grant. A hold that is passed on ([Passer]) counts as granted again. The
//     tokens of Read holds are not compared with each other, and may be equal.
//     Tokens that were not kept, of a lease that is a [TokenKeeper], are none.
//  9. Requests of several callers may be combined into one request to the
//     backend, but never two operations on one name (or backend key) in one
//     combined request: nor two of Read or Permit, but for renewals of Permit
//     holds. Each keeps its own outcome; if the combined request fails, each of
//     them is unknown.
//  10. [FIFO] means: all waiters of all clients are granted in the order of
//     their arrival, as far as their modes exclude each other, and package
//     dsync passes every waiter on. With any other [Order] package dsync lets
//     one waiting Acquire per client, name and mode contend at a time, and
//     gives a hold from caller to caller of the client for a while before the
//     release: with a token of the grant's, or by [Passer] where no token is
//     left. Of the Reads of a client one contends at a time for all of them,
//     with any Order, but those with a fixed lease each for itself. With an
//     order other than Unordered, a Read does not overtake a Write or
//     Exclusive request that came before, and a Permit request none that
//     waits, however many permits each of them asks for. For permits, with any
//     Order but FIFO, several Acquires of a client contend, none of which
//     begins while another one waits, and a hold is given to a caller who asks
//     for as many.
//  11. The permits of a request are granted, renewed, lost and given back
//     together: a grant is one step at the backend, which looks at the limit,
//     and nobody ever sees a part of it. At no time does the backend grant
//     permits by which the sum of all held exceeds the limit; one that is made
//     smaller takes nothing away, and nothing is granted until enough was
//     given back. The first grant of a name without a limit makes that of its
//     request the limit, at least until no permit is held; what [Limiter] sets
//     stays.
//
// # Locking
//
// A driver holds none of its own locks while it calls a method of [Events].
// Package dsync may hold locks of its own while it calls Expires, Session and
// Tokens of a [Lease], so these take no lock that is held during an event.
// Package dsync holds no lock during any other call.
type Driver interface {
	// Info describes the backend. It is constant for a driver value.
	Info() Info

	// Acquire asks for r.Name until a grant or the end of ctx (r.NoWait: once).
	// The driver may keep r until the returned lease is over, but not change r.
	// Errors on which the caller can act match ErrLocked, ErrUnknown,
	// ErrUnavailable, ErrClosed, ErrSealed or ErrLimit, or the error of ctx;
	// all others are passed to the user as they are.
	Acquire(ctx context.Context, r *Request) (Lease, error)

	// Close ends unfinished Acquires, all holds, clean-ups and goroutines, as
	// rule 2 says, and returns when all is done or ctx is. Nothing of the
	// client then remains on a backend in reach, except what later tokens,
	// limits, seals and latches need.
	// A client of the backend which the user handed in stays open. A later
	// Acquire returns ErrClosed. Close is called once.
	Close(ctx context.Context) error
}

// Lease is one hold, granted by a Driver. All methods may be called
// concurrently, and after the end of the lease.
type Lease interface {
	// Tokens returns the first of n consecutive fencing tokens of the grant: n
	// >= 1, or 0, 0 without fencing. Nothing but [Passer] changes them during
	// the lease. The caller hands them out in order.
	Tokens() (first uint64, n int)

	// Expires returns the time of rule 4, on the local monotonic clock. Expires
	// is cheap: package dsync calls it for every check.
	Expires() time.Time

	// Renew makes the lease last ttl from now, and moves Expires accordingly;
	// for a fixed lease Expires may also fall. Renew returns ErrNotHeld if the
	// hold is over, and never brings a hold back to life. After any other error
	// nothing has changed as far as the caller may assume. With
	// Info.KeepsAlive, Renew is called only for fixed leases.
	//
	// A ttl of 0 asks whether the backend still has the hold, and changes
	// nothing. Package dsync does so for fixed leases and after a ForceUnlock,
	// and only if Info.Detect is 0.
	Renew(ctx context.Context, ttl time.Duration) error

	// Release ends the hold, as rule 3 says. Package dsync calls Release once
	// for a lease, also after an end on the local clock, when the lease is past
	// at the backend too. There is no Release after Events.Lost, after
	// ErrNotHeld from Renew (a driver that concludes this from its own clock
	// cleans up by itself), when Driver.Close has begun, or, without
	// Info.KeepsAlive, when so much time has passed that nothing can be left: a
	// driver with a table of its leases removes these leases.
	Release(ctx context.Context) error
}

// Info describes a backend and what it promises.
type Info struct {
	Name    string // of the driver, as in "redisson"
	Order   Order
	Fencing Fencing

	// ReadWrite is what is promised of the modes Read and Write. Order and
	// Fencing are those of the mode Exclusive.
	ReadWrite Support

	// Permits is what is promised of the mode Permit. A driver that offers it
	// is a [Limiter].
	Permits Support

	// KeepsAlive says that a session, kept alive by the driver, carries the
	// locks. Otherwise package dsync calls Renew, or RenewAll, every third of
	// the TTL.
	KeepsAlive bool

	// MinTTL and MaxTTL bound the TTL of a lease; 0 means no bound. TTLs have
	// to be multiples of a TTLUnit other than 0. Package dsync refuses other
	// requests before they reach the driver.
	MinTTL, MaxTTL, TTLUnit time.Duration

	// Detect bounds the time until a holder learns of the removal of its hold
	// by somebody else, with the backend in reach. 0 means that only a renewal
	// tells, which package dsync sends every third of the TTL, for a fixed
	// lease with a TTL of 0.
	Detect time.Duration

	// Late and LatePerTTL bound how long after its TTL the backend may still
	// keep the hold of a vanished client, by accident or on purpose: see
	// LateFor. LatePerTTL is for a lag in proportion to the TTL; 1 means a TTL
	// more. Late does not include Poll: a waiter may look at the backend that
	// much later. The bound holds for a waiting request of a vanished client,
	// too: after its TTL and LateFor, or after 15 s where that is longer, it no
	// longer keeps the name from the waiters behind it.
	Late       time.Duration
	LatePerTTL float64

	// Expiry says what ends the hold of a vanished client.
	Expiry Expiry

	// Poll is how often a waiting request looks at the backend, where the
	// backend tells nobody of a free name. 0 means that waiters are told, or
	// look at least every 50 ms.
	Poll time.Duration
}

// LateFor returns how long after the end of a lease of length ttl the backend
// may still keep the hold of a vanished client.
func (i Info) LateFor(ttl time.Duration) time.Duration {
	return i.Late + time.Duration(i.LatePerTTL*float64(ttl))
}

// Expiry says what ends the hold of a vanished client.
type Expiry int

const (
	ByBackend Expiry = iota // the backend, by its own clock or with a session

	// Observed: a contender takes the name over after it has seen the hold
	// unchanged for the hold's TTL, on the contender's own clock. Nothing on
	// the backend changes before. So exclusion (rule 4) holds only among
	// clients of this driver, with clocks of the same rate within the margin of
	// package dsync, and a contender may wait for one more TTL after the end of
	// a hold.
	Observed
)

func (e Expiry) String() string {
	switch e {
	case ByBackend:
		return "by backend"
	case Observed:
		return "observed"
	}
	return "invalid expiry"
}

// Order says in which order waiters are granted a name.
type Order int

const (
	Unordered    Order = iota // any waiter may be next
	FIFOByClient              // clients in the order of arrival, and callers inside a client in theirs
	FIFO                      // all waiters of all clients in the order of arrival
)

func (o Order) String() string {
	switch o {
	case Unordered:
		return "unordered"
	case FIFOByClient:
		return "fifo by client"
	case FIFO:
		return "fifo"
	}
	return "invalid order"
}

// Fencing says whether leases carry tokens, and what makes tokens fall.
type Fencing int

const (
	None     Fencing = iota // no tokens
	Volatile                // tokens rise, but may restart when the backend loses data
	// tokens rise for as long as the backend keeps what was acknowledged; see
	// also TokenKeeper
	Durable
)

func (f Fencing) String() string {
	switch f {
	case None:
		return "none"
	case Volatile:
		return "volatile"
	case Durable:
		return "durable"
	}
	return "invalid fencing"
}

// Request is what Acquire is asked for.
type Request struct {
	// Name of the lock: valid UTF-8 without NUL, 1 to 1024 bytes. A driver
	// encodes injectively what its backend cannot keep, or by a cryptographic
	// hash where the backend's keys are too short.
	Name string

	// Hold is unique to this attempt, "<uuid of the client>:<decimal number>",
	// and is the identity of the hold on the backend. Hold is for machines:
	// errors do not contain a Hold. Nor is Hold a secret, for an Owner made up
	// by package dsync may contain the Hold; the access rights of the backend
	// protect a hold.
	Hold string

	// Owner and Note are for people, stored with the hold where the backend
	// can. They are never compared. Both are any text, also empty, of several
	// lines or in any script. A backend keeps a Note of 1 KiB whole or not at
	// all. Package dsync makes Hold and Owner of at most 64 letters, digits,
	// hyphens and colons.
	Owner, Note string

	// Permits is how many are asked for in the mode Permit, 1 or more, and
	// Limit the limit of the name: Permits or more, or 0 for the one that is
	// kept. Both are 0 in the other modes.
	// A driver that cannot grant so many permits at once returns an error that
	// matches errors.ErrUnsupported and names the bound.
	Permits, Limit int

	TTL time.Duration

	// Mode is how the name is to be held. A driver never sees a mode that its
	// Info does not offer.
	Mode Mode

	Fixed  bool // the lease ends TTL after the grant, and nothing but a call of Renew renews the lease
	NoWait bool // return ErrLocked instead of waiting

	Events Events // never nil
}

// Events is how a driver tells package dsync what happens to a Request. Its
// methods never block.
type Events interface {
	// Waiting says that the request was refused and is about to wait. Waiting
	// is called once, before the first block, and never if the lock was free.
	Waiting()

	// Tokens returns how many consecutive tokens the client could use now, at
	// least 1, and 1 for a Read. A driver with tokens asks just before each
	// request that can grant, and may give fewer.
	Tokens() int

	// Lost says that the hold is over other than by Release, as soon as the
	// driver knows, and why; cause matches ErrRemoved or ErrSessionEnded where
	// one of these applies. Lost is called at most once, from any goroutine,
	// perhaps before Acquire returned, and never after Release has returned; no
	// call is needed when Renew or Release has returned ErrNotHeld. From the
	// loss on the driver owns what is left on the backend (rule 2).
	Lost(cause error)
}

// BatchRenewer is an optional interface of a Driver: to renew many leases in
// few requests. The leases are the driver's own.
type BatchRenewer interface {
	// RenewAll renews each lease for the TTL of its Request, as Lease.Renew
	// would, and calls done exactly once for each, with index and outcome, from
	// any goroutine, before RenewAll returns. RenewAll returns soon after the
	// end of ctx. Package dsync passes at least one lease. A Renew for another
	// TTL does not change the TTL of the Request.
	RenewAll(ctx context.Context, leases []Lease, done func(i int, err error))
}

// Passer is implemented by leases with one token each, of drivers that can give
// a hold to another caller of the client in one request. Package dsync uses
// Pass where the next caller waits in the process, in place of a release and
// another Acquire.
type Passer interface {
	// Pass gives the hold a new token, above the tokens that the hold had and
	// below those of every later grant, and has the backend show Owner and Note
	// as given. The hold keeps its Hold, its session and Events. After nil
	// Tokens returns the new token. ErrNotHeld says that the hold is over;
	// after any other error the hold has the old token or the new one, and
	// package dsync releases it. There is no Pass of a fixed lease, nor while
	// another Pass or a Release of the lease is under way. Package dsync passes
	// on a lease with tokens when no token of it is left. A lease without
	// tokens goes from caller to caller without Pass, so it need not be a
	// Passer. Nor need a lease of a driver whose grants carry many tokens.
	Pass(ctx context.Context, owner, note string) error
}

// Leaver is an optional interface of a Driver whose holds can go on without
// their client.
type Leaver interface {
	// Leave ends a fixed lease in place of Release, and makes the hold end ttl
	// from now, by the backend's clock and not before, whatever becomes of the
	// client. Close does not end the hold, not even a Close that begins while
	// Leave is under way. ErrNotHeld means that the hold was over before. After
	// any other error the hold ends ttl from now, or when the lease would have,
	// and the driver leaves the hold alone. After Leave, package dsync asks the
	// lease for nothing more, so its Expires means nothing.
	Leave(ctx context.Context, l Lease, ttl time.Duration) error
}

// MayLeave is an optional interface of a Leaver that is made of other drivers.
// MayLeave returns an error that matches errors.ErrUnsupported if these cannot
// leave holds; then Leave is not called.
type MayLeave interface {
	MayLeave() error
}

// PhaseReporter is an optional interface of a Driver that is in one phase after
// the other, as in a migration. Package dsync shows the phase in metrics and
// logs.
type PhaseReporter interface {
	// OnPhase has f called with the name of the phase at once, and whenever
	// that has changed. F does not block. It is called once, before the first
	// Acquire.
	OnPhase(f func(phase string))
}

// KeepAliveReporter is an optional interface of a Driver with Info.KeepsAlive.
// Without reports package dsync learns of an outage only when the locks are
// lost.
type KeepAliveReporter interface {
	// OnKeepAlive is called once, before the first Acquire. The driver then
	// reports each request by which a session is kept alive, or made anew:
	// f(err) if the request failed or was not answered in time, within half the
	// TTL after the last answered one was sent, and before the driver reports
	// Lost for the same reason; f(nil) if the request was answered, at least
	// the first after an error. An end of the session that the server reports
	// is an answer. A connection that breaks is not, so where the session ends
	// with its connection, f(err) comes before Lost. f never blocks; the driver
	// may call f from any goroutine, and as for a method of [Events] holds none
	// of its own locks.
	OnKeepAlive(f func(err error))
}

// TokenKeeper is an optional interface of a Lease whose tokens are not
// [Durable] yet when Acquire returns, so that a grant costs nothing for those
// who look at no token.
type TokenKeeper interface {
	// KeepTokens returns nil when the tokens of the lease are durable. Package
	// dsync calls KeepTokens before it hands out a token, perhaps several
	// times, and at once. After an error, which is ErrNotHeld where the lease
	// is over and its tokens were not kept before, no token of the lease is
	// used, and the backend may give them to a later lease. KeepTokens returns
	// when ctx is over, or the time of the lease, and after a loss when
	// [Events] has been told.
	KeepTokens(ctx context.Context) error
}

// ContentionReporter is an optional interface of a Lease: its Release learns
// whether other clients wait for the name.
type ContentionReporter interface {
	// Contended is called after Release returned nil. False: no other client
	// waited. True: one may have waited.
	Contended() bool
}

// SessionLease is an optional interface of a Lease on a session, where session
// and lease may have different TTLs. How far the clocks of the two sides can
// have drifted apart by Expires depends on the TTL with which Expires was
// counted.
type SessionLease interface {
	// Session returns the end of the lease's session, counted as in rule 4, and
	// the TTL of the session. A zero time means: nothing but the lease's own
	// TTL counts. Session is as cheap as Expires, and takes as few locks.
	Session() (expires time.Time, ttl time.Duration)
}

// Inspector is an optional interface of a Driver: to tell the holder of a lock.
type Inspector interface {
	// Inspect asks the backend, never a local table. A free name is not an
	// error.
	Inspect(ctx context.Context, name string) (Status, error)
}

// RemovalWatcher is an optional interface of a Lease: its driver can learn that
// another client removed the hold sooner than by its usual means, at the cost
// of a subscription.
type RemovalWatcher interface {
	// WatchRemoval reports a removal as soon as the driver learns of it, until
	// stop is called. The driver calls Events.Lost or, without Info.KeepsAlive,
	// renew, after which package dsync calls Renew. It may also call renew
	// when nothing was removed. WatchRemoval does not wait for the backend.
	// renew does not block, and calls no method of the driver.
	WatchRemoval(renew func()) (stop func())
}

// Pinger is an optional interface of a Driver whose Inspect costs other clients
// of the backend something. Without one, Inspect is what asks a backend whether
// it answers.
type Pinger interface {
	// Ping returns nil when the backend has answered anything, whatever name
	// the next request is about. Its errors match ErrUnavailable, ErrUnknown or
	// ErrClosed, or are refusals of the server.
	Ping(ctx context.Context) error
}

// Watcher is implemented by drivers with an Inspector that learn by themselves
// when somebody gets or gives back a name.
type Watcher interface {
	// Watch calls changed soon after each end of a hold of name, also of one of
	// several Read or Permit holds, and after each grant if the backend reports
	// grants, until stop is called. The end of a hold by its TTL need not be
	// reported, because package dsync knows from Inspect when to ask. Watch may
	// also call changed when nothing has changed. It does not wait for the
	// backend: whenever the backend begins to report changes to the driver, at
	// first and after each outage, Watch calls changed too, since an earlier
	// change may have passed unseen. changed does not block, and calls no
	// method of the driver. After stop has returned, changed is not called any
	// more. Watch is called after Inspect has answered once, and returns
	// errors.ErrUnsupported where the driver's options leave nothing to report.
	Watch(name string, changed func()) (stop func(), err error)
}

// Limiter is implemented by drivers that offer the mode Permit.
type Limiter interface {
	// SetLimit sets the limit of name, 1 or more, in one step at the backend,
	// and wakes the requests that can be granted now. The limit stays when
	// nobody holds a permit. After ErrUnknown it may be set later; to set it
	// again does no harm.
	SetLimit(ctx context.Context, name string, limit int) error
}

// Lister is an optional interface of a Driver: to list the names that are held.
type Lister interface {
	// List yields names that begin with prefix, in any order: at least once
	// each name that has a hold throughout the call, in any mode and of any
	// client, and none that is free throughout. A name with several Read or
	// Permit holds is held until the last of them has ended. Sealed names are
	// held. List asks the backend with one request at a time, and so that
	// others notice little of it. An error is the last that List yields:
	// errors.ErrUnsupported where the driver's options leave no way from what
	// the backend keeps to the names.
	List(ctx context.Context, prefix string) iter.Seq2[string, error]
}

// Status is what a backend knows of a lock. Unknown fields are zero, except
// Waiters. Where several Read or Permit holds have the name, Hold, Owner, Note,
// Process, Since and TTL are of one of them, Token is that of the last grant
// among them, and Holders and Used count all of them, also those that were
// granted under a higher limit.
type Status struct {
	Held bool // also by a seal
	// in which the name is held; Exclusive for Write where the backend does not
	// tell them apart
	Mode Mode
	// how many holds have the name: more than 1 in the modes Read and Permit
	// alone
	Holders int
	Used    int // how many permits are held: more than Limit if that was lowered since
	Limit   int // of the permits, where one is kept
	// Request.Hold of the holder; where not kept, what tells its client from
	// others
	Hold    string
	Owner   string        // Request.Owner of the holder, where stored
	Note    string        // Request.Note of the holder, where stored
	Process string        // the holder's host and process id, as in "host:4711", where stored
	Since   time.Time     // of the grant
	TTL     time.Duration // until the backend ends the hold, without a renewal
	// the last fencing token of the last grant, and never of another name; 0 if
	// unknown, as it may be for a name that is free or read
	Token uint64
	// how many wait at the backend, where several requests of one client may
	// count as one; -1 if unknown
	Waiters int
	// for people: the waiters in order, each by its Owner, its Hold or the name
	// of its client, where the backend keeps a queue
	Queue []string
}

// ForceUnlocker is an optional interface of a Driver: to end the hold of any
// client.
type ForceUnlocker interface {
	// ForceUnlock ends the present hold, of whatever client, and wakes the
	// waiters. In the modes Read and Permit it ends all holds, also where more
	// permits are held than a lowered limit allows. The limit of permits stays
	// as after a release. ErrNotHeld: no client holds the name. ErrSealed: the
	// name is sealed, and a seal stays.
	ForceUnlock(ctx context.Context, name string) error
}
