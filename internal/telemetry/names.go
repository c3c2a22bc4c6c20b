package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
)

// The spans. A wait, trouble with renewals and the loss of the lock are
// children of their acquire. In an election the campaign is the parent of the
// acquire and of the term.
const (
	spanAcquire = "dsync.acquire"
	spanWait    = "dsync.wait"
	spanUnlock  = "dsync.unlock"
	spanForce   = "dsync.force_unlock"
	// exists only if renewals fail, and lasts from the first failure until a
	// renewal succeeds or the hold ends
	spanRenew  = "dsync.renew"
	spanLoss   = "dsync.loss"
	spanExpire = "dsync.expire" // when a lease ends as ExpireAfter requested

	spanCampaign = "dsync.election.campaign"
	spanTerm     = "dsync.election.term"

	eventLost = "dsync.lock.lost" // of spanLoss
)

// The attributes. Names without the prefix dsync are defined by OpenTelemetry.
const (
	keyDriver    = attribute.Key("dsync.driver")
	keyName      = attribute.Key("dsync.lock.name")
	keyOwner     = attribute.Key("dsync.lock.owner")
	keyToken     = attribute.Key("dsync.lock.token")
	keyTTL       = attribute.Key("dsync.lock.ttl")
	keyFixed     = attribute.Key("dsync.lock.fixed")
	keyReentrant = attribute.Key("dsync.lock.reentrant")
	keyClass     = attribute.Key("dsync.lock.class")
	keyMode      = attribute.Key("dsync.lock.mode") // absent if the mode is exclusive
	keyPermits   = attribute.Key("dsync.lock.permits")
	keyTry       = attribute.Key("dsync.acquire.try")
	keyOutcome   = attribute.Key("dsync.acquire.outcome")
	keyEnd       = attribute.Key("dsync.hold.end")
	keyCause     = attribute.Key("dsync.loss.cause")
	keyResult    = attribute.Key("dsync.renewal.result")
	keyState     = attribute.Key("dsync.client.state")
	keyPhase     = attribute.Key("dsync.migration.phase")
	keyTermEnd   = attribute.Key("dsync.election.end")
	keyErrorType = attribute.Key("error.type")
	keyException = attribute.Key("exception.message")

	// Used only in log records.
	keyBefore = attribute.Key("dsync.migration.phase_before")
	keyOutage = attribute.Key("dsync.outage.duration")
	keyHeld   = attribute.Key("dsync.hold.longer_than")
	keyLosses = attribute.Key("dsync.loss.count")
	keyNames  = attribute.Key("dsync.lock.names")
)

// Outcome is the outcome of a call to Lock or TryLock.
type Outcome string

const (
	Acquired Outcome = "acquired"
	Locked   Outcome = "locked"
	Canceled Outcome = "canceled"
	TimedOut Outcome = "timed_out"
	Failed   Outcome = "error"
)

// End is the way in which a hold ended.
type End string

const (
	Unlocked End = "unlocked"
	Expired  End = "expired" // as ExpireAfter requested
	Lost     End = "lost"
	Closed   End = "closed"
)

// TermEnd is the way in which the term of a leader ended.
type TermEnd string

const (
	TermResigned TermEnd = "resigned"
	TermLost     TermEnd = "lost"
	TermClosed   TermEnd = "closed"
)

// Renewal is the outcome of a renewal in the background.
type Renewal string

const (
	RenewalOK      Renewal = "ok"
	RenewalFailed  Renewal = "failed"
	RenewalNotHeld Renewal = "not_held"
)

// The values of keyState.
const (
	stateReachable   = "reachable"
	stateUnreachable = "unreachable"
)

// lockBuckets are bounds in seconds that distinguish a lock in the process, a
// round trip, a queue, and a job.
var lockBuckets = []float64{
	0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
}

// metricSpec describes an instrument.
type metricSpec struct{ name, unit, text string }

var (
	metricAcquireDuration = metricSpec{"dsync.acquire.duration", "s", "Duration of Lock and TryLock, whatever the outcome."}
	metricWaitDuration    = metricSpec{"dsync.wait.duration", "s", "How long blocked calls to Lock waited."}
	metricHoldDuration    = metricSpec{"dsync.hold.duration", "s", "Time from the grant of a lock until the end of its owner's last lease."}
	metricAcquires        = metricSpec{"dsync.acquires", "{acquire}", "Calls to Lock and TryLock."}
	metricLosses          = metricSpec{"dsync.losses", "{loss}", "Locks that ended before they were unlocked, unless ExpireAfter ended them."}
	metricRetries         = metricSpec{"dsync.acquire.retries", "{retry}", "Failed requests by Lock that are repeated."}
	metricClients         = metricSpec{"dsync.client.count", "{client}", "Open clients, by whether the backend is in reach."}
	metricMigrations      = metricSpec{"dsync.migration.client.count", "{client}", "Open clients that take part in a migration, by phase."}
	metricRenewals        = metricSpec{"dsync.renewals", "{renewal}", "Renewals of locks in the background, or failed renewals of the session that carries them."}
	metricHolds           = metricSpec{"dsync.hold.count", "{lock}", "Held locks."}
	metricCandidates      = metricSpec{"dsync.election.candidate.count", "{candidate}", "Calls to Elect that have not returned, including leaders."}
	metricLeaders         = metricSpec{"dsync.election.leader.count", "{leader}", "Current leaders."}
	metricTerms           = metricSpec{"dsync.election.terms", "{term}", "Terms of leaders that have ended."}
	metricWaiters         = metricSpec{"dsync.waiter.count", "{call}", "Blocked calls to Lock."}
)
