package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	stormTTL     = time.Second
	stormLasts   = 30 * time.Second
	stormClients = 6
)

// storm is six clients that lock three names as fast as they can, next to two
// programs that only know from. Each client goes through the phases at random
// times. The names change every few seconds, because sealed names no longer
// test anything.
type storm struct {
	t        *testing.T
	seed     uint64
	from, to *memory.Server
	history  *history.History
	work     sync.WaitGroup
	ctx      context.Context // ends the storm
	start    time.Time

	ofFrom, ofTo *memory.Options // whether sessions carry the locks

	back, moves atomic.Int64 // the numbers of roll-backs and, with a gate, of phase changes

	granted atomic.Int64
	working chan struct{} // closed after minGrants grants: before that there is no fault

	gated bool // and no program only knows from

	wrapFrom, wrapTo func(*memory.Driver) driver.Driver // in tests of the storm
}

// manyTokens requests as many tokens per grant as possible, so that the tokens
// of one backend are far above the tokens of the other.
type manyTokens struct{}

func (manyTokens) Waiting()    {}
func (manyTokens) Tokens() int { return 1 << 16 }
func (manyTokens) Lost(error)  {}

// run returns the errors that the storm found.
func (s *storm) run() error {
	s.history = history.New()
	bounds := history.Bounds{
		Fenced: !s.gated, Linger: stormTTL, Wake: 10 * stormTTL, Stuck: 20 * stormTTL, Recover: 5 * stormTTL, MaxUnknown: 0.9, MinGrants: s.minGrants(),
	}
	if s.ofFrom != nil || s.ofTo != nil || s.gated {
		bounds.Detect = 2 * stormTTL // a lost session is noticed by the next keep-alive
	}
	s.from, s.to = memory.NewServer(s.ofFrom), memory.NewServer(s.ofTo)
	s.history.Note(fmt.Sprint("seed ", s.seed))
	ctx, cancel := context.WithTimeout(context.Background(), stormLasts)
	defer cancel()
	s.ctx, s.start, s.working = ctx, time.Now(), make(chan struct{})
	first := s.from.NewDriver()
	l, err := first.Acquire(ctx, &driver.Request{Name: "x", Hold: "first:1", TTL: time.Minute, Events: manyTokens{}})
	if err == nil {
		err = errors.Join(l.Release(ctx), first.Close(ctx))
	}
	if err != nil {
		return err
	}
	var clients []*dsync.Client
	for i := range stormClients {
		random := rand.New(rand.NewPCG(s.seed, uint64(i)))
		a, b := s.from.NewDriver(), s.to.NewDriver()
		d, err := migrate.New(s.wrapFrom(a), s.wrapTo(b), s.options())
		if err != nil {
			return err
		}
		clients = append(clients, s.client(d, fmt.Sprint("client ", i), random.Uint64()))
		moves := rand.New(rand.NewPCG(s.seed, uint64(100+i)))
		if s.gated {
			s.work.Go(func() { s.moveByOne(d, moves) })
			s.work.Go(func() { s.disturb([]*memory.Driver{a, b}, fmt.Sprint("client ", i), random) })
			continue
		}
		s.work.Go(func() { s.move(d, moves) })
		back := rand.New(rand.NewPCG(s.seed, uint64(200+i)))
		s.work.Go(func() { s.takeBack(d, back) })
		s.work.Go(func() { s.disturb([]*memory.Driver{a, b}, fmt.Sprint("client ", i), random) })
	}
	for i := range s.oldPrograms() {
		clients = append(clients, s.client(s.wrapFrom(s.from.NewDriver()), fmt.Sprint("old program ", i), s.seed+uint64(i)))
	}
	s.work.Wait()
	for _, c := range clients {
		if err := c.Close(context.Background()); err != nil {
			return err
		}
	}
	if err := s.history.Close(); err != nil {
		return err
	}
	v := history.Judge(s.history.Events(), bounds)
	s.t.Logf("seed %d: %d attempts, %d granted, %d lost, %d unknown, %d faults, %d roll-backs, %d moves", s.seed, v.Attempts, v.Granted, v.Lost, v.Unknown, v.Faults, s.back.Load(), s.moves.Load())
	return v.Err()
}

func (s *storm) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (s *storm) client(d driver.Driver, label string, seed uint64) *dsync.Client {
	c, err := dsync.New(history.Tap(d), &dsync.Options{TTL: stormTTL})
	if err != nil {
		s.t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(s.seed, seed))
	s.work.Go(func() {
		for s.ctx.Err() == nil {
			s.lock(c, label, random)
		}
	})
	return c
}

func (s *storm) name(random *rand.Rand) string {
	return fmt.Sprint("name ", time.Since(s.start)/(2*time.Second), random.IntN(3))
}

// lock locks one of the names, holds it for a while, and unlocks it.
func (s *storm) lock(c *dsync.Client, label string, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(s.ctx, time.Duration(1+random.IntN(3000))*time.Millisecond)
	defer cancel()
	a := history.Attempt{Client: label, Name: s.name(random), NoWait: random.IntN(4) == 0}
	op := s.history.Begin(a)
	lock := c.Lock
	if a.NoWait {
		lock = c.TryLock
	}
	var opts []dsync.LockOption
	if random.IntN(4) == 0 {
		opts = append(opts, dsync.ExpireAfter(stormTTL))
	}
	l, err := lock(ctx, a.Name, opts...)
	if op.Returned(l, err); err != nil {
		s.sleep(time.Duration(1+random.IntN(50)) * time.Millisecond)
		return
	}
	if s.granted.Add(1) == int64(s.minGrants()) {
		close(s.working)
	}
	select {
	case <-l.Done():
		op.Lost()
	case <-time.After(time.Duration(random.IntN(40)) * time.Millisecond):
		if random.IntN(100) == 0 {
			time.Sleep(stormTTL / 2 * 3)
		}
	}
	_ = op.Check()
	op.Released(l.Unlock(op.Releasing(context.Background())))
}

// move moves a client from one phase to the other and back, more often to the
// new one.
func (s *storm) move(d *migrate.Driver, random *rand.Rand) {
	for s.sleep(time.Duration(random.Int64N(int64(stormLasts / 4)))) {
		p := migrate.PhaseNew
		if random.IntN(4) == 0 {
			p = migrate.PhaseDual
		}
		if err := d.SetPhase(s.ctx, p); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *storm) options() *migrate.Options {
	return &migrate.Options{Gated: s.gated, Unfenced: s.gated, TTL: stormTTL}
}

// minGrants is the number of grants before the first fault. With a gate,
// clients may need to wait for the phases of other clients.
func (s *storm) minGrants() int {
	if s.gated {
		return 1
	}
	return 10
}

// oldPrograms is the number of programs that only know from.
func (s *storm) oldPrograms() int {
	if s.gated {
		return 0
	}
	return 2
}

// moveByOne moves a client with a gate through the phases and back, as far as
// the gate permits.
func (s *storm) moveByOne(d *migrate.Driver, random *rand.Rand) {
	for s.sleep(time.Duration(random.Int64N(int64(3 * time.Second)))) {
		p := migrate.PhaseDual
		if d.Phase() == migrate.PhaseDual {
			p = []migrate.Phase{migrate.PhaseOld, migrate.PhaseNew}[random.IntN(2)]
		}
		ctx, cancel := context.WithTimeout(s.ctx, stormTTL)
		err := d.SetPhase(ctx, p)
		cancel()
		if err == nil {
			s.moves.Add(1)
		}
		var behind *migrate.BehindError
		known := err == nil || s.ctx.Err() != nil || errors.As(err, &behind)
		for _, e := range []error{migrate.ErrFull, driver.ErrUnknown, driver.ErrUnavailable, context.DeadlineExceeded} {
			known = known || errors.Is(err, e)
		}
		if !known {
			s.t.Errorf("change of the phase: %v", err)
		}
	}
}

// takeBack moves names back to from now and then, regardless of the phases of
// the other clients.
func (s *storm) takeBack(d *migrate.Driver, random *rand.Rand) {
	for s.sleep(time.Duration(random.Int64N(int64(time.Second)))) {
		ctx, cancel := context.WithTimeout(s.ctx, stormTTL)
		err := d.Rollback(ctx, s.name(random))
		cancel()
		known := err == nil || s.ctx.Err() != nil
		for _, e := range []error{migrate.ErrPhase, driver.ErrUnknown, driver.ErrUnavailable, context.DeadlineExceeded} {
			known = known || errors.Is(err, e)
		}
		if !known {
			s.t.Errorf("roll-back: %v", err)
		}
		if err == nil {
			s.back.Add(1)
		}
	}
}

// disturb makes requests of a client fail, but not at the end, when every
// client must be able to continue.
func (s *storm) disturb(drivers []*memory.Driver, label string, random *rand.Rand) {
	select {
	case <-s.working:
	case <-s.ctx.Done():
	}
	for s.sleep(time.Second+time.Duration(random.Int64N(int64(6*time.Second)))) && time.Since(s.start) < stormLasts*3/4 {
		off := s.history.Fault("connection", label)
		d := drivers[random.IntN(2)]
		f := memory.Fault{Kind: memory.FaultKind(random.IntN(4)), Delay: time.Duration(random.IntN(300)) * time.Millisecond}
		if random.IntN(2) == 0 {
			f.On = memory.Requests(1 + random.IntN(31))
		}
		d.Inject(f)
		s.sleep(time.Duration(random.Int64N(int64(2 * stormTTL))))
		d.Heal()
		off()
	}
}

func plain(d *memory.Driver) driver.Driver { return d }

func runStorm(t *testing.T, s *storm) (err error) {
	synctest.Test(t, func(t *testing.T) {
		s.t = t
		err = s.run()
	})
	return err
}

func TestStorm(t *testing.T) {
	t.Parallel()
	for _, m := range manners {
		t.Run(m.name, func(t *testing.T) {
			for range testenv.Briefly(1, 10) {
				seed := rand.Uint64()
				if err := runStorm(t, &storm{seed: seed, ofFrom: m.from, ofTo: m.to, wrapFrom: plain, wrapTo: plain}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

func TestStormWithAGate(t *testing.T) {
	t.Parallel()
	for _, m := range manners {
		t.Run(m.name, func(t *testing.T) {
			for range testenv.Briefly(1, 5) {
				seed := rand.Uint64()
				if err := runStorm(t, &storm{seed: seed, ofFrom: m.from, ofTo: m.to, wrapFrom: plain, wrapTo: plain, gated: true}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// gateless grants every slot to every process.
type gateless struct{ *memory.Driver }

func (d gateless) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if strings.HasPrefix(r.Name, "dsync:migrate:") {
		free := *r
		free.Name += r.Hold
		r = &free
	}
	return d.Driver.Acquire(ctx, r)
}

// sealless reports success of Seal, but does not seal.
type sealless struct{ *memory.Driver }

func (d sealless) Seal(ctx context.Context, l driver.Lease) error { return l.Release(ctx) }

// floorless forgets the floor.
type floorless struct{ *memory.Driver }

func (d floorless) Mark(ctx context.Context, l driver.Lease, _ uint64) error {
	return d.Driver.Mark(ctx, l, 0)
}

// TestStormFindsWhatIsMissing shows that the storm finds errors.
func TestStormFindsWhatIsMissing(t *testing.T) {
	for _, test := range []struct {
		name             string
		wrapFrom, wrapTo func(*memory.Driver) driver.Driver
		gated            bool
		want             history.Rule
	}{
		{"seal", func(d *memory.Driver) driver.Driver { return sealless{d} }, plain, false, history.RuleOverlap},
		{"floor", plain, func(d *memory.Driver) driver.Driver { return floorless{d} }, false, history.RuleTokens},
		{"gate", func(d *memory.Driver) driver.Driver { return gateless{d} }, func(d *memory.Driver) driver.Driver { return gateless{d} }, true,
			history.RuleOverlap},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range uint64(20) {
				err := runStorm(t, &storm{seed: seed, wrapFrom: test.wrapFrom, wrapTo: test.wrapTo, gated: test.gated})
				if err != nil && strings.Contains(err.Error(), string(test.want)) {
					return
				}
			}
			t.Errorf("20 storms without a %s did not violate rule %s", test.name, test.want)
		})
	}
}
