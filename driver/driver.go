// Package driver is the contract between package dsync and its backends.
//
// Only authors of drivers import the package. A driver implements [Driver] and
// [Lease], which have a handful of methods. Package dsync implements everything
// that is common to all backends: owners and reentrancy, the local queue,
// renewal, the loss of a lease on the local clock, error texts, and closing.
// Eleven numbered rules bind both sides. They are documented at [Driver] (go
// doc driver.Driver), and package conformance checks them. A driver that passes
// the suite is complete.
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
// These rules bind both sides. "Hold" is [Request.Hold], the identity of one
// attempt.
//
//  1. Acquire returns a lease or an error, never both. Acquire, Renew, Release
//     and RenewAll return within a bounded time after their ctx ends, whatever
//     the backend does. A request that cannot wait (NoWait) and is refused
//     returns [ErrLocked]. If a wait ends with ctx and the last answer was a
//     refusal, the error matches both ErrLocked and ctx's error. If ctx cut off
//     a later request, the error matches ErrUnknown and ctx's error: package
//     dsync remembers that Events.Waiting was called. If the grant arrives at
//     the instant at which ctx ends, Acquire returns either a lease or an
//     error. After the error either nothing is held, or the error matches
//     ErrUnknown. [ErrSealed] is returned immediately, even to calls that are
//     already waiting, and concerns every [Mode] of the name. [ErrLimit] is
//     also returned immediately, according to the limit that is stored when the
//     backend answers. A waiting call also returns ErrLimit when the stored
//     limit has changed to a different one.
//  2. After an error of Acquire or Release the driver owns whatever may be left
//     on the backend. The driver cleans up by Hold, in the background and
//     bounded in number, until one of these is true: the backend reported that
//     the hold was removed; the backend's answer was ordered behind the request
//     in question (a later request on the same connection), so that "absent" is
//     definite; the request in question was conditional on a state of the
//     backend that can never recur, such as an older version of a record; or
//     the lease, session or connection of the hold has ended and send time +
//     TTL + [Info.LateFor] has passed. "Absent" is not definite if it was read
//     over another connection, because the request may still be on its way. (A
//     backend without an order can remember a removed Hold for a TTL, and
//     refuse the request that arrives late.) If the matter is not settled when
//     the call returns, the error matches [ErrUnknown]. The exception is a
//     server that refused the request after a part of it, for example for lack
//     of rights: its error needs a change by a person and not another attempt.
//     Close first ends unfinished Acquires (they return [ErrClosed] and leave
//     the backend's queues), then ends holds in few requests, then waits for
//     cleanups until its ctx ends.
//  3. Release returns nil if this release ended the hold, even if an earlier,
//     unanswered request of the same release did. It returns [ErrNotHeld] if
//     the hold had ended before. Any other error means that the outcome is
//     unknown. Whatever Release returns, the lease is dead from then on: never
//     renewed, never kept alive.
//  4. Expires is a time before which no request can be granted the name in a
//     mode that excludes the hold ([Mode.Excludes]), unless a client removes
//     the hold. It is the send time of an answered request, handled by the
//     backend at or after the grant, plus the TTL. No margin is subtracted.
//     Expires never counts from the receipt of an answer. If the request
//     blocked for more than a third of the TTL before the grant, Expires does
//     not count from its send time either. The driver renews the hold before
//     Acquire returns. Once passed, Expires never moves again. If the lock
//     belongs to a session, Expires of a fixed lease is the earlier of the
//     session's end and grant + TTL. A driver lowers Expires before it sends a
//     renewal that makes a fixed lease shorter. If the TTL of the session may
//     differ, the lease is a [SessionLease].
//  5. Renewals and keep-alives are conditional on Hold. They never create a
//     hold, never touch another hold, and never keep another hold alive. This
//     is true even if several Read holds share one key of the backend: each
//     hold ends at its own time. An error other than ErrNotHeld changes
//     nothing. A renewal that arrives after a later one shortens nothing. A
//     slow node delays only the leases on that node.
//  6. Hold identifies an attempt, Owner does not. Two Acquires of one client
//     for one name exclude each other, even with equal Owner, unless both are
//     for Read, or the limit admits both Permit requests. Holds of different
//     modes exclude each other although they may have different forms on the
//     backend. But a name is used either for permits or for the other modes. If
//     a name is used for both, each use keeps only its own promises.
//  7. The driver keeps alive a hold or queue entry that an unfinished Acquire
//     has on the backend, and checks it before Acquire returns.
//  8. Tokens rise. The first token of a lease is above every token of every
//     earlier grant of the name (including the tokens of the incumbents that
//     share the key, if they have tokens), and its last token is below every
//     token of every later grant. A hold that is passed on ([Passer]) counts as
//     granted again. The tokens of Read holds are not compared with each other,
//     and may be equal. The tokens of a lease that is a [TokenKeeper] do not
//     count until they are kept.
//  9. Requests of several callers may be combined into one request to the
//     backend. A combined request never contains two operations on one name (or
//     backend key). This includes two operations of Read or Permit, except
//     renewals. Each operation keeps its own outcome. If the combined request
//     fails, the outcome of each operation is unknown.
//  10. [FIFO] means that all waiters of all clients are granted in the order of
//     their arrival, as far as their modes exclude each other. Package dsync
//     then passes every waiter on to the driver. With any other [Order] package
//     dsync lets one waiting Acquire per client, name and mode contend at a
//     time, and passes a hold from caller to caller of the client for a while
//     before the release. It does so with a token of the grant, or by [Passer]
//     if no token is left. With any Order, one Read of a client contends at a
//     time for all of the client's Reads. Only a Read with a fixed lease
//     contends for itself. With an order other than Unordered, a Read does not
//     overtake an earlier Write or Exclusive request, and a Permit request
//     does not overtake any waiting Permit request, regardless of the number
//     of permits that each of them requests. For permits, with any Order but
//     FIFO, several Acquires of a client contend, but none begins while
//     another one waits. A hold of permits passes only to a caller that
//     requests the same number of permits.
//  11. The permits of a request are granted, renewed, lost and released
//     together. A grant is one step on the backend, which checks the limit, and
//     a partial grant is never visible. The backend never grants permits that
//     would make the sum of all held permits exceed the limit. Lowering the
//     limit revokes no permit, and nothing is granted until enough permits are
//     released. If a name has no limit, its first grant sets the limit of the
//     request, at least until no permit is held. A limit set by [Limiter]
//     stays.
//
// # Locking
//
// A driver holds none of its own locks while it calls a method of [Events].
// Package dsync may hold locks of its own while it calls Expires, Session and
// Tokens of a [Lease], so these methods must not take a lock that is held
// during an event. Package dsync holds no lock during any other call.
type Driver interface {
	// Info describes the backend. It is constant for a driver value.
	Info() Info

	// Acquire tries to acquire r.Name until it is granted or ctx ends. With
	// r.NoWait it tries once. The driver may keep r until the returned lease
	// has ended, but must not change r. Errors that the caller can act on match
	// ErrLocked, ErrUnknown, ErrUnavailable, ErrClosed, ErrSealed or ErrLimit,
	// or the error of ctx. All other errors are passed to the user unchanged.
	Acquire(ctx context.Context, r *Request) (Lease, error)

	// Close ends unfinished Acquires, all holds, cleanups and goroutines, as
	// rule 2 requires. It returns when all this is done or ctx has ended. Then
	// nothing of the client remains on a backend that is in reach, except the
	// state that later tokens, limits, seals and latches need. A backend client
	// that the user passed in stays open. A later Acquire returns ErrClosed.
	// Close is called once.
	Close(ctx context.Context) error
}

// Lease is one hold, granted by a Driver. All methods may be called
// concurrently, and after the end of the lease.
type Lease interface {
	// Tokens returns the first of n consecutive fencing tokens of the grant,
	// with n >= 1. Without fencing it returns 0, 0. Only [Passer] changes them
	// during the lease. The caller hands them out in order.
	Tokens() (first uint64, n int)

	// Expires returns the time of rule 4, on the local monotonic clock. Expires
	// is cheap: package dsync calls it for every check.
	Expires() time.Time

	// Renew makes the lease last ttl from now and moves Expires accordingly.
	// For a fixed lease Expires may also fall. Renew returns ErrNotHeld if the
	// hold has ended, and never revives a hold. After any other error the
	// caller must assume that nothing has changed. With Info.KeepsAlive, Renew
	// is called only for fixed leases.
	//
	// With a ttl of 0, Renew checks whether the backend still has the hold,
	// without changing anything. Package dsync does so for fixed leases and
	// after a ForceUnlock, and only if Info.Detect is 0.
	Renew(ctx context.Context, ttl time.Duration) error

	// Release ends the hold, as rule 3 requires. Package dsync calls Release
	// once per lease. After an end on the local clock, it calls Release when
	// the lease has ended on the backend too. Release is not called after
	// Events.Lost, after ErrNotHeld from Renew (a driver that concludes this
	// from its own clock cleans up by itself), or when Driver.Close has begun.
	// Without Info.KeepsAlive, it is also not called after so much time that
	// nothing can be left. A driver with a table of its leases removes these
	// leases itself.
	Release(ctx context.Context) error
}

// Info describes a backend and its promises.
type Info struct {
	Name    string // of the driver, as in "redisson"
	Order   Order
	Fencing Fencing

	// ReadWrite describes the modes Read and Write. Order and Fencing describe
	// the mode Exclusive.
	ReadWrite Support

	// Permits describes the mode Permit. A driver that offers it is a
	// [Limiter].
	Permits Support

	// KeepsAlive means that the driver keeps a session alive, and that the
	// locks belong to the session. Otherwise package dsync calls Renew, or
	// RenewAll, every third of the TTL.
	KeepsAlive bool

	// MinTTL and MaxTTL bound the TTL of a lease; 0 means no bound. TTLs must
	// be multiples of TTLUnit if it is not 0. Package dsync refuses other
	// requests before they reach the driver.
	MinTTL, MaxTTL, TTLUnit time.Duration

	// Detect bounds the time until a holder is notified that another client
	// removed its hold, while the backend is in reach. 0 means that only a
	// renewal finds out. Package dsync sends a renewal every third of the TTL,
	// and for a fixed lease the renewal has a TTL of 0.
	Detect time.Duration

	// Late and LatePerTTL bound the time after its TTL for which the backend
	// may still keep the hold of a vanished client, by accident or on purpose
	// (see LateFor). LatePerTTL is for a lag in proportion to the TTL; 1 means
	// one more TTL. Late does not include Poll: a waiter may query the backend
	// later by up to Poll. The bound also applies to a waiting request of a
	// vanished client. After its TTL plus LateFor, or after 15 s if that is
	// longer, the request no longer blocks the waiters behind it.
	Late       time.Duration
	LatePerTTL float64

	// Expiry is the way in which the hold of a vanished client ends.
	Expiry Expiry

	// Poll is the interval at which a waiting request queries the backend, if
	// the backend does not notify waiters of a free name. 0 means that waiters
	// are notified, or query at least every 50 ms.
	Poll time.Duration
}

// LateFor returns the time after the end of a lease of length ttl for which the
// backend may still keep the hold of a vanished client.
func (i Info) LateFor(ttl time.Duration) time.Duration {
	return i.Late + time.Duration(i.LatePerTTL*float64(ttl))
}

// Expiry is the kind of event that ends the hold of a vanished client.
type Expiry int

const (
	ByBackend Expiry = iota // the backend, by its own clock or with a session

	// Observed: a contender takes over the name after it has seen the hold
	// unchanged for the hold's TTL, on the contender's own clock. Nothing on
	// the backend changes before that. So exclusion (rule 4) holds only among
	// clients of this driver, with clocks of the same rate within the margin of
	// package dsync, and a contender may wait a full TTL after the end of a
	// hold.
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

// Order is the order in which waiters are granted a name.
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

// Fencing describes whether leases have tokens, and what could make the tokens
// fall.
type Fencing int

const (
	None     Fencing = iota // no tokens
	Volatile                // tokens rise, but may restart when the backend loses data
	// tokens rise as long as the backend keeps acknowledged data; see also
	// TokenKeeper
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

// Request describes the lock that Acquire must acquire.
type Request struct {
	// Name of the lock: valid UTF-8 without NUL, 1 to 1024 bytes. If its
	// backend cannot store a name, a driver encodes the name injectively, or
	// uses a cryptographic hash if the backend's keys are too short.
	Name string

	// Hold is unique to this attempt, "<uuid of the client>:<decimal number>",
	// and is the identity of the hold on the backend. Hold is for machines:
	// errors do not contain a Hold. Nor is Hold a secret, because an Owner made
	// up by package dsync may contain the Hold. The access rights of the
	// backend protect a hold.
	Hold string

	// Owner and Note are for people. They are stored with the hold if the
	// backend can store them, and are never compared. Both are arbitrary texts:
	// they may be empty, have several lines, or be in any script. A backend
	// keeps a Note of 1 KiB whole or not at all. Package dsync uses at most 64
	// letters, digits, hyphens and colons for Hold and Owner.
	Owner, Note string

	// Permits is the number of permits to acquire in mode Permit, 1 or more.
	// Limit is the limit of the name: Permits or more, or 0 for the stored
	// limit. Both are 0 in the other modes. A driver that cannot grant that
	// many permits together returns an error that matches errors.ErrUnsupported
	// and names the bound.
	Permits, Limit int

	TTL time.Duration

	// Mode is the kind of hold to acquire. A driver never sees a mode that its
	// Info does not offer.
	Mode Mode

	Fixed  bool // the lease ends TTL after the grant, and only a call to Renew renews the lease
	NoWait bool // return ErrLocked instead of waiting

	Events Events // never nil
}

// Events are the methods by which a driver notifies package dsync of the
// progress of a Request. Its methods never block.
type Events interface {
	// Waiting reports that the request was refused and is about to wait.
	// Waiting is called once, before the first block, and never if the lock was
	// free.
	Waiting()

	// Tokens returns the number of consecutive tokens that the client could use
	// now: at least 1, and 1 for a Read. A driver with tokens calls it just
	// before each request that can grant, and may grant fewer.
	Tokens() int

	// Lost reports that the hold ended without a Release, and why. The driver
	// calls it as soon as it learns of the loss. cause matches ErrRemoved or
	// ErrSessionEnded if one of these applies. Lost is called at most once,
	// from any goroutine. It may be called before Acquire returns, but never
	// after Release has returned. No call is needed when Renew or Release has
	// returned ErrNotHeld. After the loss the driver owns the remains on the
	// backend (rule 2).
	Lost(cause error)
}

// BatchRenewer is an optional interface of a Driver, to renew many leases in
// few requests. The leases are the driver's own.
type BatchRenewer interface {
	// RenewAll renews each lease for the TTL of its Request, as Lease.Renew
	// would, and calls done exactly once for each, with its index and outcome.
	// The calls may come from any goroutine, and all of them come before
	// RenewAll returns. RenewAll returns soon after the end of ctx. Package
	// dsync passes at least one lease. A Renew for a different TTL does not
	// change the TTL of the Request.
	RenewAll(ctx context.Context, leases []Lease, done func(i int, err error))
}

// Passer is an optional interface of a Lease with one token, for drivers that
// can pass a hold to another caller of the client in one request. Package dsync
// uses Pass if the next caller waits in the process, in place of a release and
// another Acquire.
type Passer interface {
	// Pass gives the hold a new token, above the tokens that the hold had and
	// below the tokens of every later grant, and replaces the Owner and Note on
	// the backend. The hold keeps its Hold, its session and Events. If Pass
	// returns nil, Tokens returns the new token. ErrNotHeld means that the hold
	// has ended. After any other error the hold has the old token or the new
	// one, and package dsync releases it.
	//
	// Pass is not called for a fixed lease, nor while another Pass or a Release
	// of the lease is pending. Package dsync passes on a lease with tokens only
	// when none of its tokens is left. A lease without tokens goes from caller
	// to caller without Pass, so it need not be a Passer. The same applies to a
	// lease of a driver whose grants carry many tokens.
	Pass(ctx context.Context, owner, note string) error
}

// Leaver is an optional interface of a Driver whose holds can outlive their
// client.
type Leaver interface {
	// Leave ends a fixed lease in place of Release, and makes the hold end ttl
	// from now, by the backend's clock and not before, regardless of the fate
	// of the client. Close does not end the hold, not even a Close that begins
	// during Leave. ErrNotHeld means that the hold had ended before. After any
	// other error the hold ends ttl from now, or when the lease would have
	// ended, and the driver leaves the hold alone. After Leave, package dsync
	// makes no more requests for the lease, so the lease's Expires no longer
	// has a meaning.
	Leave(ctx context.Context, l Lease, ttl time.Duration) error
}

// MayLeave is an optional interface of a Leaver that is composed of other
// drivers. MayLeave returns an error that matches errors.ErrUnsupported if
// these drivers cannot leave holds. In this case Leave is not called.
type MayLeave interface {
	MayLeave() error
}

// PhaseReporter is an optional interface of a Driver that passes through
// phases, as in a migration. Package dsync shows the phase in metrics and logs.
type PhaseReporter interface {
	// OnPhase makes the driver call f with the name of the phase, immediately
	// and after each change. f does not block. OnPhase is called once, before
	// the first Acquire.
	OnPhase(f func(phase string))
}

// KeepAliveReporter is an optional interface of a Driver with Info.KeepsAlive.
// Without these reports, package dsync notices an outage only when the locks
// are lost.
type KeepAliveReporter interface {
	// OnKeepAlive is called once, before the first Acquire. From then on the
	// driver reports each request that keeps a session alive or creates a new
	// one. The driver calls f(err) if the request failed or was not answered in
	// time. This call comes within half the TTL after the last answered request
	// was sent, and before the driver reports Lost for the same reason. It
	// calls f(nil) if the request was answered, at least for the first answer
	// after an error. An end of the session that the server reports is an
	// answer. A connection that breaks is not, so if the session ends with its
	// connection, f(err) comes before Lost.
	//
	// f never blocks. The driver may call f from any goroutine. As with the
	// methods of [Events], it holds none of its own locks during the call.
	OnKeepAlive(f func(err error))
}

// TokenKeeper is an optional interface of a Lease whose tokens are not
// [Durable] yet when Acquire returns. A grant then costs nothing extra for
// callers that use no token.
type TokenKeeper interface {
	// KeepTokens returns nil when the tokens of the lease are durable. Package
	// dsync calls KeepTokens before it hands out a token, perhaps several times
	// and concurrently. After an error no token of the lease is used, and the
	// backend may give them to a later lease. The error is ErrNotHeld if the
	// lease has ended and its tokens were not kept before. KeepTokens returns
	// when ctx is done or the lease has expired. If the lease is lost, it
	// returns after [Events] has been notified.
	KeepTokens(ctx context.Context) error
}

// ContentionReporter is an optional interface of a Lease whose Release learns
// whether other clients wait for the name.
type ContentionReporter interface {
	// Contended is called after Release returned nil. It returns false if no
	// other client waited, and true if one may have waited.
	Contended() bool
}

// SessionLease is an optional interface of a Lease on a session, if session and
// lease may have different TTLs. The possible drift between the clocks of the
// two sides at Expires depends on the TTL from which Expires was computed.
type SessionLease interface {
	// Session returns the end of the lease's session, computed as in rule 4,
	// and the TTL of the session. A zero time means that only the lease's own
	// TTL counts. Session is as cheap as Expires, and the same restriction on
	// locks applies.
	Session() (expires time.Time, ttl time.Duration)
}

// Inspector is an optional interface of a Driver that can report the holder of
// a lock.
type Inspector interface {
	// Inspect queries the backend, never a local table. A free name is not an
	// error.
	Inspect(ctx context.Context, name string) (Status, error)
}

// RemovalWatcher is an optional interface of a Lease. At the cost of a
// subscription, its driver can notice sooner than usual that another client
// removed the hold.
type RemovalWatcher interface {
	// WatchRemoval reports a removal as soon as the driver learns of it, until
	// stop is called. The driver calls Events.Lost or, without Info.KeepsAlive,
	// renew, after which package dsync calls Renew. It may also call renew when
	// nothing was removed. WatchRemoval does not wait for the backend. renew
	// does not block and calls no method of the driver.
	WatchRemoval(renew func()) (stop func())
}

// Pinger is an optional interface of a Driver whose Inspect is a burden for
// other clients of the backend. Without it, package dsync uses Inspect to find
// out whether the backend answers.
type Pinger interface {
	// Ping returns nil when the backend has given any answer, regardless of the
	// name that the next request is for. Its errors match ErrUnavailable,
	// ErrUnknown or ErrClosed, or are refusals by the server.
	Ping(ctx context.Context) error
}

// Watcher is an optional interface of a Driver with an Inspector that notices
// by itself when a client acquires or releases a name.
type Watcher interface {
	// Watch calls changed shortly after each end of a hold of name, including
	// one of several Read or Permit holds, and after each grant if the backend
	// reports grants, until stop is called. The end of a hold by its TTL need
	// not be reported, because package dsync knows from Inspect when to query.
	// Watch may also call changed when nothing has changed. It does not wait
	// for the backend. Whenever the backend begins to report changes to the
	// driver, initially and after each outage, Watch also calls changed,
	// because an earlier change may have gone unnoticed. changed does not block
	// and calls no method of the driver. After stop has returned, changed is no
	// longer called. Watch is called after Inspect has answered once, and
	// returns errors.ErrUnsupported if the driver's options leave nothing to
	// report.
	Watch(name string, changed func()) (stop func(), err error)
}

// Limiter is an optional interface of a Driver. A driver that offers the mode
// Permit implements it.
type Limiter interface {
	// SetLimit sets the limit of name, 1 or more, in one step on the backend,
	// and wakes the requests that can be granted now. The limit remains set
	// when no client holds a permit. After ErrUnknown the limit may still be
	// set later. Setting it again is harmless.
	SetLimit(ctx context.Context, name string, limit int) error
}

// Lister is an optional interface of a Driver that can list the held names.
type Lister interface {
	// List yields names that begin with prefix, in any order. It yields each
	// name at least once if any client holds the name, in any mode, throughout
	// the call. It yields no name that is free throughout. A name with several
	// Read or Permit holds is held until the last of them has ended. Sealed
	// names are held. List sends one request at a time to the backend, and
	// limits its impact on other clients. An error is the last element that
	// List yields. The error is errors.ErrUnsupported if the driver's options
	// make it impossible to derive the names from the stored data.
	List(ctx context.Context, prefix string) iter.Seq2[string, error]
}

// Status is the state of a lock as the backend knows it. Unknown fields are
// zero, except Waiters. If a name has several Read or Permit holds, then Hold,
// Owner, Note, Process, Since and TTL describe one of them. Token is the token
// of the last grant among them. Holders and Used count all of them, including
// holds granted under a higher limit.
type Status struct {
	Held bool // also true if the name is sealed
	// the mode in which the name is held; Exclusive for Write if the backend
	// does not distinguish them
	Mode Mode
	// the number of holds: more than 1 only in the modes Read and Permit
	Holders int
	Used    int // the number of held permits: more than Limit if the limit has been lowered since
	Limit   int // the limit of permits, if one is stored
	// Request.Hold of the holder; if it is not stored, a value that identifies
	// its client
	Hold    string
	Owner   string        // Request.Owner of the holder, if stored
	Note    string        // Request.Note of the holder, if stored
	Process string        // the holder's host and process id, as in "host:4711", if stored
	Since   time.Time     // time of the grant; on etcd, of the request
	TTL     time.Duration // time until the backend ends the hold if it is not renewed
	// the last fencing token of the last grant of this name; 0 if unknown, as
	// it may be for a name that is free or held by readers
	Token uint64
	// the number of waiters on the backend, which may count several requests of
	// one client as one; -1 if unknown
	Waiters int
	// for people: the waiters in order, each by its Owner, its Hold or the name
	// of its client, if the backend keeps a queue
	Queue []string
}

// ForceUnlocker is an optional interface of a Driver that can end the hold of
// any client.
type ForceUnlocker interface {
	// ForceUnlock ends the current hold, whichever client it belongs to, and
	// wakes the waiters. In the modes Read and Permit it ends all holds,
	// including permits above a lowered limit. The limit of permits remains as
	// after a release. ForceUnlock returns ErrNotHeld if no client holds the
	// name. It returns ErrSealed if the name is sealed; the seal stays.
	ForceUnlock(ctx context.Context, name string) error
}
