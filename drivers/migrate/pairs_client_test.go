package migrate_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/drivers/migrate"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	_ "github.com/go-dsync/dsync/drivers/sqllock"
	_ "github.com/go-dsync/dsync/drivers/zk"
)

// pairTTL is long enough for machines that are busy.
const pairTTL = 2 * time.Second

// pairClient is one client in a storm on real backends. It locks three names as
// fast as it can, and changes the phase at random times. The names change every
// few seconds, because names that have moved no longer test anything.
type pairClient struct {
	Label, URL, Names, History string

	Seed  uint64
	Start int64 // of the storm, in Unix nanoseconds
	Moves time.Duration

	ready func() // called when it has locked something
	once  sync.Once
	begin chan struct{} // closed when it may change the phase, after all clients have locked something
}

// clientVariable is the environment variable with the input of clientProcess.
const clientVariable = "DSYNC_TEST_PAIR_CLIENT"

// clientProcess runs a pairClient in its own process, until its standard input
// ends.
func clientProcess() {
	var c pairClient
	err := json.Unmarshal([]byte(os.Getenv(clientVariable)), &c)
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		c.begin = make(chan struct{})
		go func() { // ends at the end of the standard input
			in := bufio.NewReader(os.Stdin)
			if _, err := in.ReadString('\n'); err == nil {
				close(c.begin)
			}
			_, _ = io.Copy(io.Discard, in)
			cancel()
		}()
		c.ready = func() { fmt.Println("ready") }
		var moves int
		moves, err = c.run(ctx)
		fmt.Println(moves)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, c.Label+":", err)
		os.Exit(1)
	}
}

// run returns how often it changed the phase. After the end of ctx it locks
// each name one more time, to check that every client can continue.
func (c *pairClient) run(ctx context.Context) (moves int, err error) {
	h, err := history.Create(c.History, c.Label)
	if err != nil {
		return 0, err
	}
	d, err := c.open(ctx)
	if err != nil {
		return 0, err
	}
	guard, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangGuard)
	defer cancel()
	client, err := dsync.New(d, &dsync.Options{TTL: pairTTL})
	if err != nil {
		return 0, errors.Join(err, d.Close(guard))
	}
	var work sync.WaitGroup
	for i := range uint64(2) {
		random := rand.New(rand.NewPCG(c.Seed, i))
		work.Go(func() {
			for ctx.Err() == nil {
				c.lock(ctx, client, h, random)
			}
		})
	}
	m, moving := d.(*migrate.Driver)
	select {
	case <-c.begin:
	case <-ctx.Done():
	}
	if moving {
		moves, err = c.move(ctx, m)
	}
	<-ctx.Done()
	work.Wait()
	guard, cancel = context.WithTimeout(context.WithoutCancel(ctx), hangGuard)
	defer cancel()
	if moving && err == nil {
		err = c.last(guard, m, client, h)
	}
	return moves, errors.Join(err, client.Close(guard), h.Close())
}

// open opens the client as its supervisor would: it retries while other clients
// are in the way, or the machine is too busy.
func (c *pairClient) open(ctx context.Context) (driver.Driver, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangGuard)
	defer cancel()
	for {
		d, _, err := driver.Open(ctx, c.URL)
		if err == nil || !isTemporary(err) || !pause(ctx, pairTTL/10) {
			return d, err
		}
	}
}

func (c *pairClient) name(random *rand.Rand) string {
	epoch := time.Since(time.Unix(0, c.Start)) / (2 * time.Second)
	return fmt.Sprintf("%s:%d:%d", c.Names, epoch, random.IntN(3))
}

func (c *pairClient) lock(ctx context.Context, client *dsync.Client, h *history.History, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+random.IntN(3000))*time.Millisecond)
	defer cancel()
	a := history.Attempt{Client: c.Label, Name: c.name(random), NoWait: random.IntN(8) == 0}
	lock := client.Lock
	if a.NoWait {
		lock = client.TryLock
	}
	op := h.Begin(a)
	l, err := lock(ctx, a.Name)
	if op.Returned(l, err); err != nil {
		pause(ctx, time.Duration(1+random.IntN(20))*time.Millisecond)
		return
	}
	c.once.Do(c.ready)
	select {
	case <-l.Done():
		op.Lost()
	case <-time.After(time.Duration(random.IntN(10)) * time.Millisecond):
	}
	_ = op.Check()
	op.Released(l.Unlock(op.Releasing(context.Background())))
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// move changes the phase, and moves names back, until the end of ctx.
func (c *pairClient) move(ctx context.Context, d *migrate.Driver) (moves int, err error) {
	random := rand.New(rand.NewPCG(c.Seed, 100))
	gated := strings.Contains(c.URL, "gate=true")
	for pause(ctx, time.Duration(random.Int64N(int64(c.Moves)))) {
		p := []migrate.Phase{migrate.PhaseDual, migrate.PhaseNew}[random.IntN(2)]
		if gated {
			p = migrate.PhaseDual
			if d.Phase() == migrate.PhaseDual {
				p = []migrate.Phase{migrate.PhaseOld, migrate.PhaseNew}[random.IntN(2)]
			}
		}
		bound, cancel := context.WithTimeout(ctx, 2*pairTTL)
		err := d.SetPhase(bound, p)
		if err == nil {
			moves++
		} else if !isTemporary(err) {
			cancel()
			return moves, fmt.Errorf("to phase %v: %w", p, err)
		}
		if !gated && random.IntN(3) == 0 {
			if err := d.Rollback(bound, c.name(random)); !isTemporary(err) && !errors.Is(err, migrate.ErrNoWayBack) {
				cancel()
				return moves, fmt.Errorf("roll-back: %w", err)
			}
		}
		cancel()
	}
	return moves, nil
}

// isTemporary reports whether a change may fail with err next to other clients
// and under faults.
func isTemporary(err error) bool {
	if err == nil {
		return true
	}
	var behind *migrate.BehindError
	for _, e := range []error{migrate.ErrPhase, migrate.ErrFull, driver.ErrUnknown, driver.ErrUnavailable, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, &behind)
}

// last locks each of the latest names one more time.
func (c *pairClient) last(ctx context.Context, d *migrate.Driver, client *dsync.Client, h *history.History) error {
	if strings.Contains(c.URL, "gate=true") {
		if err := d.SetPhase(ctx, migrate.PhaseDual); err != nil {
			return fmt.Errorf("to phase dual in the end: %w", err)
		}
	}
	random := rand.New(rand.NewPCG(c.Seed, 200))
	for range 3 {
		name := c.name(random)
		op := h.Begin(history.Attempt{Client: c.Label, Name: name})
		l, err := client.Lock(ctx, name)
		if op.Returned(l, err); err == nil {
			op.Released(l.Unlock(op.Releasing(ctx)))
		}
		if err != nil {
			return fmt.Errorf("the last lock of %q in phase %v: %w", name, d.Phase(), err)
		}
	}
	return nil
}
