// Package migrate moves locks from one backend to another while all programs
// keep running. Its driver combines two drivers, from and to, and registers the
// URL scheme "migrate":
//
//	migrate:?from=redisson%3A%2F%2Fold%3A6379&to=redisson%3A%2F%2Fnew%3A6379&phase=dual
//
// A process is in one [Phase] at a time: first in PhaseDual, then in PhaseNew.
// Processes exclude each other in any phases, and they exclude programs that
// only know from. A seal is a grant on from that never ends. Because of the
// seal, a program that only knows from cannot acquire a name that has moved.
// See docs/migration.md.
//
// from must be a [move.Sealer], and to must be a [move.Marker]. Names can
// return if from is also a [move.Unsealer] and to a [move.Unmarker]. Other
// pairs need [Options.Gated]: processes register on the backends, and no
// process enters PhaseNew while another process is in PhaseOld.
//
// # Parameters
//
// The parameters ttl=, require= and fenced=, which every backend has, apply
// only to this URL. It also has:
//
//	from=URL, to=URL                 the two backends, with special characters as %XX
//	phase=dual|new                   see [Phase]; with a gate also old
//	gate=true                        see Options.Gated
//
// # What does not move
//
// Reads, writes, permits and latches are refused (errors.ErrUnsupported).
// Readers would need tokens between the tokens of the writers on both backends.
// Permits would have to be counted across both backends. Names of latches do
// not move. Programs that only know from, in any mode, and programs in the
// migration exclude each other.
package migrate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
)

// Phase selects which of the two backends a process uses. A name that is sealed
// on from has moved. From then on it is locked only on to, in any phase.
type Phase int8

const (
	PhaseOld  Phase = iota - 1 // uses from; only with a gate
	PhaseDual                  // uses from, then to; the tokens are from's
	PhaseNew                   // uses to; the grant of a name that is not sealed yet seals it
)

var phaseNames = [...]string{"old", "dual", "new"}

// parsePhase returns the phase with a name.
func parsePhase(name string) (p Phase, ok bool) {
	i := slices.Index(phaseNames[:], name)
	return PhaseOld + Phase(i), i >= 0
}

func (p Phase) valid() bool { return PhaseOld <= p && p <= PhaseNew }

func (p Phase) String() string {
	if !p.valid() {
		return "invalid phase"
	}
	return phaseNames[p-PhaseOld]
}

// MarshalText implements encoding.TextMarshaler.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Refusals of a Driver. Errors that match these contain the reason.
var (
	// ErrPhase reports that a call is not possible in this phase, or that the
	// phase does not exist, such as PhaseOld without a gate.
	ErrPhase = errors.New("not possible in this phase")

	// ErrTokens reports that the tokens could fall when names move between the
	// pair of backends. Options.Unfenced gives up the tokens.
	ErrTokens = fmt.Errorf("the fencing tokens would fall: %w", errors.ErrUnsupported)

	// ErrNeedsGate reports that the pair can be migrated only with
	// Options.Gated.
	ErrNeedsGate = fmt.Errorf("names cannot move by seals between these backends (see gate=true): %w", errors.ErrUnsupported)

	// ErrNoSeals reports that with a gate names do not move one by one.
	ErrNoSeals = fmt.Errorf("there are no seals in a migration with a gate: %w", errors.ErrUnsupported)
)

// Options are the options of a Driver. The zero value is valid.
type Options struct {
	Phase Phase

	// Unfenced gives up the tokens. Otherwise a pair is refused if only from
	// has tokens.
	Unfenced bool

	// Gated selects the procedure for backends that keep no seals. All programs
	// must take part. There are no tokens, so Unfenced is needed if both
	// backends have them. See docs/migration.md.
	Gated bool

	// FromFloor and ToFloor are added to the tokens of the two backends, like
	// floor parameters in their URLs. With a ToFloor above all tokens of from,
	// tokens rise even for names that no program locks before the programs
	// switch to using only to with that floor (see [Driver.Tokens]).
	FromFloor, ToFloor uint64

	// TTL is the TTL of the driver's own holds, such as a membership. The
	// default is 30 s, or the nearest TTL that both backends support. With a
	// gate, leases may have a TTL of up to 20 times as long.
	TTL time.Duration
}

// Driver is a driver.Driver that combines two drivers.
type Driver struct {
	from, to *backend
	sealer   move.Sealer   // from; nil if from is not a Sealer, which needs a gate
	unsealer move.Unsealer // from; nil if from is not an Unsealer
	marker   move.Marker   // to; nil if to is not a Marker, which needs a gate
	unmarker move.Unmarker // to; nil if to is not an Unmarker
	gate     *gate         // nil if names are sealed
	info     driver.Info
	phase    atomic.Int32
	ttl      time.Duration // of the driver's own holds
	id       string        // of the driver; the prefix of its own holds
	process  string        // host and process, for people
	holds    atomic.Uint64 // the number of holds that the driver has created

	life   context.Context // canceled by Close
	end    context.CancelFunc
	told   reporter
	phases phaseReporter

	mu       sync.Mutex
	sessions map[sessionKey]*session
	closed   bool
	ended    bool           // no more work may begin
	calls    sync.WaitGroup // Acquires
	steps    sync.WaitGroup // steps begun by closable
	work     sync.WaitGroup // cleanups
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.BatchRenewer      = (*Driver)(nil)
	_ driver.KeepAliveReporter = (*Driver)(nil)
	_ driver.PhaseReporter     = (*Driver)(nil)
	_ driver.Inspector         = (*Driver)(nil)
	_ driver.ForceUnlocker     = (*Driver)(nil)
	_ driver.Leaver            = (*Driver)(nil)
)

// backend is one of the two backends.
type backend struct {
	driver.Driver
	info  driver.Info
	role  string
	floor uint64 // added to the tokens of the driver
	kept  error  // the last report of its keep-alives
}

func newBackend(d driver.Driver, role string, floor uint64) *backend {
	return &backend{Driver: d, info: d.Info(), role: role, floor: floor}
}

// above adds the floor to a token of the driver, if there is one.
func (b *backend) above(token *uint64) {
	if *token > 0 {
		*token += b.floor
	}
}

// below returns the value above which the driver must raise its tokens, so that
// with the floor they are above last.
func (b *backend) below(last uint64) uint64 { return last - min(last, b.floor) }

// explain adds the name of the backend to an error.
func (b *backend) explain(err error) error {
	if err != nil {
		err = fmt.Errorf("%s backend: %w", b.role, err)
	}
	return err
}

// New returns a driver that moves locks between two backends. It refuses a pair
// between which names cannot be migrated, or on which tokens could fall. Unless
// it returns an error, it owns both drivers, and Close closes them.
func New(from, to driver.Driver, o *Options) (*Driver, error) {
	if o == nil {
		o = &Options{}
	}
	if from == nil || to == nil || from == to {
		return nil, errors.New("migrate: a migration needs two different drivers")
	}
	if !o.Phase.valid() {
		return nil, fmt.Errorf("migrate: invalid Options.Phase: %d", o.Phase)
	}
	_, isFrom := from.(*Driver)
	if _, isTo := to.(*Driver); isFrom || isTo {
		return nil, fmt.Errorf("migrate: a migration cannot be from or to another migration: %w", errors.ErrUnsupported)
	}
	d := &Driver{from: newBackend(from, "old", o.FromFloor), to: newBackend(to, "new", o.ToFloor), id: processID(),
		process: fmt.Sprintf("%s, process %d", hostname(), os.Getpid()), sessions: map[sessionKey]*session{}}
	if err := errors.Join(d.from.info.CheckFloor(o.FromFloor), d.to.info.CheckFloor(o.ToFloor)); err != nil {
		return nil, err
	}
	d.info = weakest(d.from.info, d.to.info)
	if o.Unfenced {
		d.info.Fencing = driver.None
	}
	if d.from.info.Fencing != driver.None && d.to.info.Fencing == driver.None && !o.Unfenced {
		return nil, fmt.Errorf("%w: backend %s has fencing tokens and %s has none, so resources that check tokens would refuse "+
			"every client after the migration", ErrTokens, d.from.info.Name, d.to.info.Name)
	}
	if err := d.choose(o); err != nil {
		return nil, err
	}
	if d.info.MaxTTL > 0 && d.info.MinTTL > d.info.MaxTTL {
		return nil, fmt.Errorf("migrate: no TTL suits both backends %s and %s: %w", d.from.info.Name, d.to.info.Name, errors.ErrUnsupported)
	}
	if d.ttl = d.nearestTTL(o.TTL); o.TTL != 0 && d.ttl != o.TTL {
		return nil, fmt.Errorf("migrate: Options.TTL is %v, which at least one backend does not support: %w", o.TTL, errors.ErrUnsupported)
	}
	if longest := maxLeases * d.ttl; o.Gated && (d.info.MaxTTL == 0 || d.info.MaxTTL > longest) {
		d.info.MaxTTL = longest
	}
	d.phase.Store(int32(o.Phase))
	d.life, d.end = context.WithCancel(context.Background())
	d.report()
	return d, nil
}

// errOldNeedsGate is the error for PhaseOld without a gate. With seals, a
// process in PhaseOld would behave like a program that only knows from.
var errOldNeedsGate = fmt.Errorf("migrate: %w: phase %v exists only with a gate", ErrPhase, PhaseOld)

// processID identifies this driver and shows humans where it runs: host,
// process and a random text, without a colon.
func processID() string {
	plain := notPlain.ReplaceAllString(hostname(), "-")
	return fmt.Sprintf("%s%.40s-%d-%s", HoldPrefix, plain, os.Getpid(), rand.Text())
}

var notPlain = regexp.MustCompile(`[^a-zA-Z0-9]`)

func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown host"
	}
	return host
}

// HoldPrefix is the prefix of all holds of a migration on its backends. A
// program that only knows one backend has no such holds.
const HoldPrefix = "migrate-"

// ofProgram is the prefix of holds of programs that use the migration.
const ofProgram = HoldPrefix + "for-"

// maxLeases bounds the TTL of a lease, as a multiple of the TTL of a
// membership. Package dsync ends a lease 1 % of its TTL early. With a larger
// multiple, that margin could use up most of the TTL of the membership, and
// dsync would refuse the lease because it would end immediately.
const maxLeases = 20

// choose prepares d for one of the two procedures.
func (d *Driver) choose(o *Options) error {
	from, to := d.from.info.Name, d.to.info.Name
	d.sealer, _ = d.from.Driver.(move.Sealer)
	d.unsealer, _ = d.from.Driver.(move.Unsealer)
	d.marker, _ = d.to.Driver.(move.Marker)
	d.unmarker, _ = d.to.Driver.(move.Unmarker)
	if o.Gated {
		if d.info.Fencing != driver.None {
			return fmt.Errorf("%w: without seals, tokens of %s would not be above tokens of %s", ErrTokens, to, from)
		}
		d.info.KeepsAlive = true // leases end when the membership ends
		d.gate = newGate(d)
		return nil
	}
	switch {
	case o.Phase == PhaseOld:
		return errOldNeedsGate
	case d.sealer == nil:
		return fmt.Errorf("%w: backend %s cannot seal a lock", ErrNeedsGate, from)
	case d.marker == nil:
		return fmt.Errorf("%w: backend %s cannot keep a mark and a floor of the tokens", ErrNeedsGate, to)
	}
	return nil
}

// weakest returns the promises that hold in every phase, and between two
// phases. An order does not carry over from one backend to the other.
func weakest(a, b driver.Info) driver.Info {
	i := driver.Info{
		Name:    "migrate",
		Order:   driver.Unordered,
		Fencing: min(a.Fencing, b.Fencing),
		// also with a session of this package, on the backend without sessions
		KeepsAlive: a.KeepsAlive || b.KeepsAlive,
		MinTTL:     max(a.MinTTL, b.MinTTL),
		MaxTTL:     max(a.MaxTTL, b.MaxTTL),
		TTLUnit:    common(a.TTLUnit, b.TTLUnit),
		Late:       max(a.Late, b.Late),
		Permits:    driver.Support{Why: "a limit cannot be kept on two backends at a time"},
	}
	if a.MaxTTL > 0 && b.MaxTTL > 0 {
		i.MaxTTL = min(a.MaxTTL, b.MaxTTL)
	}
	if a.Detect > 0 && b.Detect > 0 {
		i.Detect = max(a.Detect, b.Detect)
	}
	return i
}

// common returns the shortest duration that is a multiple of both. 0 means that
// every duration is a multiple.
func common(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	divisor, rest := a, b
	for rest > 0 {
		divisor, rest = rest, divisor%rest
	}
	return a / divisor * b
}

// nextHold returns the identity of one of the driver's own holds.
func (d *Driver) nextHold() string { return fmt.Sprintf("%s:%d", d.id, d.holds.Add(1)) }

// Info implements driver.Driver. It returns the promises that both backends
// keep, in every phase, without an order.
func (d *Driver) Info() driver.Info { return d.info }

// Phase returns the phase of d.
func (d *Driver) Phase() Phase { return Phase(d.phase.Load()) }

// SetPhase moves d to another phase. It applies to calls to Acquire that begin
// later. Other calls and leases do not change. Names stay where they are: see
// [Driver.Rollback].
//
// With a gate SetPhase moves d forward or back by one phase ([ErrSkipped]), and
// waits for holds of this process that are two phases away. It returns a
// [*BehindError] if other processes are two phases away. Waiting calls to
// Acquire start again in the new phase. After an error nothing has changed.
func (d *Driver) SetPhase(ctx context.Context, p Phase) error {
	switch {
	case !p.valid():
		return fmt.Errorf("migrate: %w: phase %d does not exist", ErrPhase, p)
	case d.gate == nil && p == PhaseOld:
		return errOldNeedsGate
	case d.gate == nil:
		d.enterPhase(p)
		return nil
	}
	return d.gate.setPhase(ctx, p)
}

// Close implements driver.Driver. It closes both backends.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.end()
	left := make(chan struct{})
	go func() { // ends when d.life ends
		defer close(left)
		d.steps.Wait()
	}()
	select {
	case <-left:
	case <-ctx.Done():
	}
	d.mu.Lock()
	d.ended = true
	sessions := slices.Collect(maps.Values(d.sessions))
	d.mu.Unlock()
	for _, s := range sessions {
		s.end()
	}
	var toErr error
	var to sync.WaitGroup
	to.Go(func() { toErr = d.to.Close(ctx) })
	fromErr := d.from.Close(ctx)
	to.Wait()
	<-left
	d.calls.Wait()
	d.work.Wait()
	return errors.Join(fromErr, toErr)
}

// begin begins a task that Close waits for. It returns false if d is closed.
func (d *Driver) begin(group *sync.WaitGroup) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		group.Add(1)
	}
	return !d.closed
}

// closable begins a task that Close ends and waits for before it closes the
// backends. It returns the context for the task, and a function to call at its
// end.
func (d *Driver) closable(ctx context.Context) (bound context.Context, end func(), err error) {
	if !d.begin(&d.steps) {
		return nil, nil, driver.ErrClosed
	}
	bound, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.life, cancel)
	return bound, func() {
		stop()
		cancel()
		d.steps.Done()
	}, nil
}

// spawn runs f in a goroutine that Close waits for. It does not run f if Close
// is about to end all holds anyway.
func (d *Driver) spawn(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.work.Go(f)
	}
}
