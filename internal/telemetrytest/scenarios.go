package telemetrytest

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// Scenarios are events of a lock with the expected telemetry.
var Scenarios = []Scenario{
	{Name: "free", run: free, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.unlock {@A dsync.lock.reentrant=false}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked} 1
`},
	{Name: "waited for another client", run: waitedFor("second"), spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.unlock {@A dsync.lock.reentrant=false}
second
  dsync.acquire {@B dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
    dsync.wait {@name dsync.acquire.outcome=acquired} ->? dsync.acquire of first
  dsync.unlock {@B dsync.lock.reentrant=false}
`, points: waitedPoints},
	{Name: "waited for the same client", run: waitedFor("first"), spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.unlock {@A dsync.lock.reentrant=false}
second
  dsync.acquire {@B dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
    dsync.wait {@name dsync.acquire.outcome=acquired} -> dsync.acquire of first
  dsync.unlock {@B dsync.lock.reentrant=false}
`, points: waitedPoints},
	{Name: "busy", run: busy, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.unlock {@A dsync.lock.reentrant=false}
second
  dsync.acquire {@name dsync.acquire.outcome=locked dsync.acquire.try=true @ttl}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquire.duration {@backend dsync.acquire.outcome=locked} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=locked} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked} 1
`},
	{Name: "canceled", run: canceled, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.unlock {@A dsync.lock.reentrant=false}
second
  dsync.acquire {@name dsync.acquire.outcome=canceled dsync.acquire.try=false @ttl}
    dsync.wait {@name dsync.acquire.outcome=canceled} ->? dsync.acquire of first
`, points: givenUpPoints("canceled")},
	{Name: "timed out", run: timedOut, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.unlock {@A dsync.lock.reentrant=false}
second
  dsync.acquire {@name dsync.acquire.outcome=timed_out dsync.acquire.try=false @ttl}
    dsync.wait {@name dsync.acquire.outcome=timed_out} ->? dsync.acquire of first
`, points: givenUpPoints("timed_out")},
	{Name: "re-entry", run: reentry, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.acquire {@B dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=true @ttl}
  dsync.unlock {@B dsync.lock.reentrant=true}
  dsync.unlock {@A dsync.lock.reentrant=false}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 2
dsync.acquires {@backend dsync.acquire.outcome=acquired} 2
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked} 1
`},
	{Name: "read together", needs: canRead, run: readTogether, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.mode=read dsync.lock.reentrant=false @ttl}
  dsync.acquire {@B dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.mode=read dsync.lock.reentrant=true @ttl}
  dsync.unlock {@B dsync.lock.mode=read dsync.lock.reentrant=true}
  dsync.unlock {@A dsync.lock.mode=read dsync.lock.reentrant=false}
second
  dsync.acquire {@name dsync.acquire.outcome=locked dsync.acquire.try=true dsync.lock.mode=write @ttl}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired dsync.lock.mode=read} 2
dsync.acquire.duration {@backend dsync.acquire.outcome=locked dsync.lock.mode=write} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired dsync.lock.mode=read} 2
dsync.acquires {@backend dsync.acquire.outcome=locked dsync.lock.mode=write} 1
dsync.hold.count {@backend dsync.lock.mode=read} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked dsync.lock.mode=read} 1
`},
	{Name: "read under a lock", needs: canRead, run: readNested, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
  dsync.acquire {@B dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.mode=read dsync.lock.reentrant=true @ttl}
  dsync.unlock {@B dsync.lock.reentrant=true}
  dsync.unlock {@A dsync.lock.reentrant=false}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired dsync.lock.mode=read} 1
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired dsync.lock.mode=read} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked} 1
`},
	{Name: "permits", needs: hasPermits, run: permitted, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.mode=permit dsync.lock.permits=2 dsync.lock.reentrant=false @ttl}
  dsync.unlock {@A dsync.lock.mode=permit dsync.lock.permits=2 dsync.lock.reentrant=false}
second
  dsync.acquire {@name dsync.acquire.outcome=locked dsync.acquire.try=true dsync.lock.mode=permit dsync.lock.permits=3 @ttl}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired dsync.lock.mode=permit} 1
dsync.acquire.duration {@backend dsync.acquire.outcome=locked dsync.lock.mode=permit} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired dsync.lock.mode=permit} 1
dsync.acquires {@backend dsync.acquire.outcome=locked dsync.lock.mode=permit} 1
dsync.hold.count {@backend dsync.lock.mode=permit} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked dsync.lock.mode=permit} 1
`},
	{Name: "client closed", run: closed, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=closed} 1
`},
	{Name: "elected", run: elected, spans: `
first
  dsync.election.campaign {@A dsync.acquire.outcome=acquired}
    dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
    dsync.election.term {@A dsync.election.end=resigned}
    dsync.unlock {@A dsync.lock.reentrant=false}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.election.candidate.count {@backend} 0
dsync.election.leader.count {@backend} 0
dsync.election.terms {@backend dsync.election.end=resigned} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked} 1
`},
	{Name: "expired as asked", run: expired, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
    dsync.expire {@A dsync.lock.fixed=true}
`, points: `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=expired} 1
`},
	{Name: "lost: unlocked by force", needs: canForce, run: forced, spans: lostSpans("@forced", "@taken") + `
second
  dsync.force_unlock {@name}
`, points: lostPoints("@forced") + `
asked? dsync.renewals {@backend dsync.renewal.result=not_held} +
`},
	{Name: "lost: backend out of reach", needs: canCut, run: cutOff, spans: `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
renewed?     dsync.renew {@A}
renewed?       ! exception {exception.type=unavailable exception.message=*}
    dsync.loss {@A dsync.lock.fixed=false dsync.loss.cause=@cutoff error.type=@cutoff} Error (lock lost: @loss)
      ! dsync.lock.lost {dsync.loss.cause=@cutoff exception.message=*}
`, points: lostPoints("@cutoff") + `
unreachable? dsync.renewals {@backend dsync.renewal.result=failed} +
`},
	{Name: "lost: session ended", needs: hasSession, run: sessionEnded,
		spans: lostSpans("session_ended", "session ended"), points: lostPoints("session_ended")},
}

const waitedPoints = `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 2
dsync.acquires {@backend dsync.acquire.outcome=acquired} 2
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked} 2
dsync.wait.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.waiter.count {@backend} 0
`

func givenUpPoints(outcome string) string {
	return `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquire.duration {@backend dsync.acquire.outcome=` + outcome + `} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=` + outcome + `} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=unlocked} 1
dsync.wait.duration {@backend dsync.acquire.outcome=` + outcome + `} 1
dsync.waiter.count {@backend} 0
`
}

func lostSpans(cause, words string) string {
	return `
first
  dsync.acquire {@A dsync.acquire.outcome=acquired dsync.acquire.try=false dsync.lock.reentrant=false @ttl}
    dsync.loss {@A dsync.lock.fixed=false dsync.loss.cause=` + cause + ` error.type=` + cause + `} Error (lock lost: ` + words + `)
      ! dsync.lock.lost {dsync.loss.cause=` + cause + ` exception.message=*}`
}

func lostPoints(cause string) string {
	return `
dsync.acquire.duration {@backend dsync.acquire.outcome=acquired} 1
dsync.acquires {@backend dsync.acquire.outcome=acquired} 1
dsync.hold.count {@backend} 0
dsync.hold.duration {@backend dsync.hold.end=lost} 1
dsync.losses {@backend dsync.loss.cause=` + cause + `} 1`
}

func canForce(b *Backend, _ driver.Info) bool   { return b.Forced != "" }
func canCut(b *Backend, _ driver.Info) bool     { return b.CutOff != "" }
func hasSession(b *Backend, i driver.Info) bool { return b.EndSession != nil && i.KeepsAlive }
func canRead(_ *Backend, i driver.Info) bool    { return i.Offers(driver.Read) }
func hasPermits(_ *Backend, i driver.Info) bool { return i.Offers(driver.Permit) }

func free(e *env) {
	e.lock(e.client("first"), "first", "A")
	e.unlock("first", "A")
}

func waitedFor(holder string) func(e *env) {
	return func(e *env) {
		e.lock(e.client(holder), "first", "A")
		waiter := e.client("first")
		l, err := e.wait(e.Context(), waiter, "second", func() { e.unlock("first", "A") })
		if err != nil {
			e.Fatal(err)
		}
		e.leased("B", l)
		e.unlock("second", "B")
	}
}

func busy(e *env) {
	e.lock(e.client("first"), "first", "A")
	if _, err := e.client("second").TryLock(e.request("second"), e.name); !errors.Is(err, dsync.ErrLocked) {
		e.Errorf("TryLock of a held lock: %v, want ErrLocked", err)
	}
	e.unlock("first", "A")
}

func canceled(e *env) {
	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()
	e.lock(e.client("first"), "first", "A")
	if _, err := e.wait(ctx, e.client("second"), "second", cancel); !errors.Is(err, context.Canceled) {
		e.Errorf("Lock that was canceled: %v", err)
	}
	e.unlock("first", "A")
}

func timedOut(e *env) {
	e.lock(e.client("first"), "first", "A")
	e.client("second")
	// the wait leaves enough time to be blocked
	ctx, cancel := context.WithTimeout(e.Context(), 3*time.Second+e.held)
	defer cancel()
	_, err := e.wait(ctx, e.client("second"), "second", func() {})
	if !errors.Is(err, context.DeadlineExceeded) {
		e.Errorf("Lock that timed out: %v", err)
	}
	was := e.blocked["second"]
	was.to, _ = ctx.Deadline()
	e.blocked["second"] = was
	e.unlock("first", "A")
}

func reentry(e *env) {
	o := e.client("first").NewOwner()
	nested(e, o, o, func() {})
}

func readTogether(e *env) {
	readers := dsync.With(e.client("first"), dsync.Read())
	nested(e, readers, readers, func() {
		if _, err := e.client("second").TryLock(e.request("second"), e.name, dsync.Write()); !errors.Is(err, dsync.ErrLocked) {
			e.Errorf("TryLock of a lock that is read: %v, want ErrLocked", err)
		}
	})
}

func permitted(e *env) {
	e.lock(e.client("first"), "first", "A", dsync.Permits(2, 4))
	if _, err := e.client("second").TryLock(e.request("second"), e.name, dsync.Permits(3, 4)); !errors.Is(err, dsync.ErrLocked) {
		e.Errorf("TryLock of more permits than are free: %v, want ErrLocked", err)
	}
	e.unlock("first", "A")
}

func readNested(e *env) {
	o := e.client("first").NewOwner()
	nested(e, o, dsync.With(o, dsync.Read()), func() {})
}

// nested acquires two locks in one request and does other work between the
// unlocks.
func nested(e *env, outer, inner dsync.Locker, between func()) {
	e.lock(outer, "first", "A")
	pause(e.Context(), time.Millisecond) // spans are in the order of their start
	e.lock(inner, "first", "B")
	pause(e.Context(), time.Millisecond)
	e.unlock("first", "B")
	between()
	pause(e.Context(), time.Millisecond)
	e.unlock("first", "A")
}

func closed(e *env) { e.lock(e.client("first"), "first", "A") }

func elected(e *env) {
	ctx := e.request("first")
	err := dsync.Elect(ctx, e.client("first"), e.name, func(under context.Context, term *dsync.Lease) error {
		if trace.SpanFromContext(under) != trace.SpanFromContext(ctx) {
			e.Error("the context of a leader has a span other than Elect's")
		}
		e.leased("A", term)
		pause(under, time.Millisecond) // spans are in the order of their start
		return nil
	})
	if err != nil {
		e.Fatal(err)
	}
}

func expired(e *env) {
	e.lock(e.client("first"), "first", "A", dsync.ExpireAfter(e.backend.TTL))
	<-e.leases["A"].Done()
}

func forced(e *env) {
	e.lock(e.client("first"), "first", "A")
	if err := e.client("second").ForceUnlock(e.request("second"), e.name); err != nil {
		e.Fatal(err)
	}
	<-e.leases["A"].Done()
}

func cutOff(e *env) {
	e.lock(e.client("first"), "first", "A")
	e.client("first").cut()
	<-e.leases["A"].Done()
}

func sessionEnded(e *env) {
	e.lock(e.client("first"), "first", "A")
	e.backend.EndSession(e.client("first").driver)
	<-e.leases["A"].Done()
}
