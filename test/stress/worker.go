package stress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	_ "github.com/go-dsync/dsync/drivers/sqllock"
	_ "github.com/go-dsync/dsync/drivers/zk"
)

// worker is a process that locks a few names in all supported ways until it
// receives the order to end. It prints "ready" on its standard output when it
// has been granted a lock, and "ended" at the end.
type worker struct {
	Label, URL, History, Resource string

	Names []string // locked by all users
	// locked only by users that wait without a limit: no other request can help
	// a stuck waiter
	Patient string
	Long    string // held for longer than a renewal takes
	// read by all users nine times out of ten, and otherwise written; "" if the
	// backend does not support that
	Shared string
	// held by up to permitLimit users at a time; "" if the backend does not
	// support permits
	Permits string
	// under this fault the backend may lose some of the permits, and their
	// limit
	Forgets bool
	// Election is the name for which all workers campaign, and which they
	// observe. It is "" if there is no election.
	Election string
	Seed     uint64
	Clients  int    // clients in this process; faults affect the first
	Plant    string // a bug, see plant

	Pace time.Duration // longest pause between two attempts of a goroutine
	Hold time.Duration // longest hold of the long lock, in addition to a quarter of the TTL

	// Bounded means that no call may exceed its time limit by more than slack.
	// If a call has no limit of its own, its limit is soon.
	Bounded bool

	Quiet bool // only the long lock is used, so that the servers see only the requests that keep it

	client  []*dsync.Client
	crowds  []*crowd // one for each client
	held    sync.Map // leases whose holders are working under them
	drivers []driver.Driver
	witness []*witness // one for each client, if there is an election
	history *history.History
	ended   atomic.Bool
	once    sync.Once
	stuck   error // at the end, when there are no more faults

	lateMu sync.Mutex
	late   []error // calls that exceeded their time limit
}

const (
	soon  = 5 * time.Second
	slack = 2 * time.Second // for a busy machine
)

// inTime records a call that exceeded its time limit, if the limit is checked.
func (w *worker) inTime(what string, start time.Time, bound time.Duration) {
	if took := time.Since(start); w.Bounded && took > bound+slack {
		w.lateMu.Lock()
		defer w.lateMu.Unlock()
		w.late = append(w.late, fmt.Errorf("%w: %s took %v, want at most %v", errStuck, what, took.Round(time.Millisecond), bound))
	}
}

const workerVariable = "DSYNC_STRESS_WORKER"

// runWorker is the main function of a worker process.
func runWorker() {
	var w worker
	err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &w)
	if err == nil {
		err = w.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, w.Label+":", err)
		os.Exit(1)
	}
	fmt.Println("ended")
}

func (w *worker) run(ctx context.Context) (err error) {
	input := make(chan string)
	go func() { // ends at the end of the standard input
		defer close(input)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			input <- in.Text()
		}
	}()
	before := runtime.NumGoroutine()
	if w.history, err = history.Create(w.History, w.Label); err != nil {
		return err
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	var work, observers sync.WaitGroup
	observing, stop := context.WithCancel(ctx)
	defer stop()
	for i, c := range w.client {
		w.start(&work, i)
		if w.Election != "" {
			o := &witness{client: c}
			w.witness = append(w.witness, o)
			observers.Go(func() { o.observe(observing, w.Election) })
		}
	}
	for line := range input {
		if line == "end" {
			break
		}
		answer, err := w.obey(line)
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	w.ended.Store(true)
	work.Wait()
	for i := range w.client {
		if w.stuck == nil {
			w.last(ctx, i)
		}
	}
	stop()
	observers.Wait()
	guard, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, c := range w.client {
		start := time.Now()
		err = errors.Join(err, c.Close(guard))
		w.inTime("Close", start, soon)
	}
	return errors.Join(w.stuck, errors.Join(w.late...), err, w.history.Close(), leftGoroutines(before))
}

// open opens the clients. Like a supervisor of the process, it retries while
// the backend is unreachable.
func (w *worker) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for range max(w.Clients, 1) {
		d, _, err := driver.Open(ctx, w.URL)
		for err != nil && isTemporary(err) && pause(ctx, 50*time.Millisecond) {
			d, _, err = driver.Open(ctx, w.URL)
		}
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		d = plant(w.Plant, d, w.URL)
		tapped := history.Tap
		if w.Election != "" {
			tapped = newObservable
		}
		c, err := dsync.New(tapped(d), &dsync.Options{TTL: TTL})
		if err != nil {
			return err
		}
		w.client, w.drivers = append(w.client, c), append(w.drivers, d)
		w.crowds = append(w.crowds, &crowd{client: c, driver: d, held: map[string]*dsync.Lease{}, wrong: make(chan error, 1)})
	}
	return nil
}

func isTemporary(err error) bool {
	for _, e := range []error{driver.ErrUnknown, driver.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// start starts goroutines that work with a client.
func (w *worker) start(work *sync.WaitGroup, client int) {
	roles := []func(*user){(*user).patient, (*user).patient, (*user).impatient, (*user).long}
	if w.Shared != "" {
		roles = append(roles, (*user).shared, (*user).shared)
	}
	if w.Permits != "" {
		roles = append(roles, (*user).permits, (*user).permits)
	}
	if w.Election != "" {
		roles = append(roles, (*user).elect)
	}
	if w.Quiet {
		roles = []func(*user){(*user).long}
	}
	for i, role := range roles {
		u := &user{worker: w, client: w.client[client], random: rand.New(rand.NewPCG(w.Seed, uint64(client*len(roles)+i)))}
		u.label = w.Label
		if len(w.client) > 1 {
			u.label = fmt.Sprint(w.Label, ".", client)
		}
		work.Go(func() { // ends when w.ended is set
			u.store = dialResource(w.Resource)
			defer u.store.close()
			for !w.ended.Load() {
				role(u)
			}
		})
	}
}

// last locks every name one more time, to check that no user is stuck.
func (w *worker) last(ctx context.Context, client int) {
	u := &user{worker: w, client: w.client[client], label: fmt.Sprint(w.Label, ".last.", client), random: rand.New(rand.NewPCG(w.Seed, 100))}
	u.store = dialResource(w.Resource)
	defer u.store.close()
	for _, name := range append([]string{w.Patient, w.Long}, w.Names...) {
		if err := u.use(ctx, history.Attempt{Name: name}, patience, 0); err != nil {
			w.stuck = fmt.Errorf("%w: the last lock of %q: %w", errStuck, name, err)
			return
		}
	}
	if w.Election != "" {
		if err := u.testify(ctx, w.witness[client]); err != nil {
			w.stuck = fmt.Errorf("%w: the last term of %q: %w", errStuck, w.Election, err)
			return
		}
	}
	if w.Permits != "" {
		all := history.Attempt{Name: w.Permits, Mode: driver.Permit, Permits: permitLimit, Limit: permitLimit}
		if err := u.use(ctx, all, patience, 0); err != nil {
			w.stuck = fmt.Errorf("%w: all permits of %q at the end: %w", errStuck, w.Permits, err)
			return
		}
	}
	for _, m := range []driver.Mode{driver.Write, driver.Read} {
		if w.Shared == "" {
			return
		}
		if err := u.use(ctx, history.Attempt{Name: w.Shared, Mode: m}, patience, 0); err != nil {
			w.stuck = fmt.Errorf("%w: the last %v of %q: %w", errStuck, m, w.Shared, err)
			return
		}
	}
}

// user is one goroutine that locks and unlocks.
type user struct {
	*worker
	client *dsync.Client
	label  string
	random *rand.Rand
	store  *resourceClient
}

func (u *user) upTo(d time.Duration) time.Duration { return time.Duration(u.random.Int64N(int64(d))) }

func (u *user) any(names ...string) string { return names[u.random.IntN(len(names))] }

func (u *user) patient() {
	name := u.any(append([]string{u.Patient}, u.Names...)...)
	_ = u.use(context.Background(), history.Attempt{Name: name}, patience, u.upTo(4*time.Millisecond))
	time.Sleep(u.upTo(u.Pace))
}

// impatient waits for a short time, or not at all.
func (u *user) impatient() {
	wait := u.upTo(300*time.Millisecond) + time.Millisecond
	if u.random.IntN(3) == 0 {
		wait = 0
	}
	_ = u.use(context.Background(), history.Attempt{Name: u.any(u.Names...)}, wait, u.upTo(4*time.Millisecond))
	time.Sleep(u.upTo(2 * u.Pace))
}

// shared reads nine times out of ten, sometimes for as long as a few renewals
// take. Otherwise it writes.
func (u *user) shared() {
	mode, hold := driver.Read, u.upTo(4*time.Millisecond)
	if u.random.IntN(10) == 0 {
		mode = driver.Write
	} else if u.random.IntN(50) == 0 {
		hold = TTL/4 + u.upTo(TTL)
	}
	_ = u.use(context.Background(), history.Attempt{Name: u.Shared, Mode: mode}, patience, hold)
	time.Sleep(u.upTo(u.Pace))
}

// long pauses after each hold. Without the pause, a user that locks again
// immediately could keep out all other users, on a busy machine and with a lock
// that has no order.
func (u *user) long() {
	_ = u.use(context.Background(), history.Attempt{Name: u.Long}, patience, TTL/4+u.upTo(u.Hold))
	time.Sleep(u.upTo(20 * time.Millisecond))
}

// use acquires a lock, writes or reads the resource, and releases the lock. It
// returns the error of the attempt. The judge decides whether the attempt was
// allowed to fail during a fault.
func (u *user) use(ctx context.Context, a history.Attempt, wait, hold time.Duration) error {
	a.Client, a.NoWait = u.label, wait == 0
	lock := u.client.Lock
	if a.NoWait {
		lock, wait = u.client.TryLock, patience
	}
	var options []dsync.LockOption
	switch a.Mode {
	case driver.Read:
		options = append(options, dsync.Read())
	case driver.Write:
		options = append(options, dsync.Write())
	case driver.Permit:
		options = append(options, dsync.Permits(a.Permits, a.Limit))
	}
	if hold < TTL/8 && u.random.IntN(10) == 0 {
		options = append(options, dsync.ExpireAfter(TTL))
	}
	bound, cancel := context.WithTimeout(ctx, wait)
	op := u.history.Begin(a)
	start := time.Now()
	l, err := lock(bound, a.Name, options...)
	op.Returned(l, err)
	cancel()
	if a.NoWait {
		wait = soon
	}
	u.inTime(fmt.Sprintf("a call for %q", a.Name), start, wait)
	if err != nil {
		if !errors.Is(err, dsync.ErrLocked) { // a user that is refused immediately retries immediately
			time.Sleep(u.upTo(20 * time.Millisecond))
		}
		return err
	}
	u.once.Do(func() { fmt.Println("ready") })
	u.hold(l, op, a, hold)
	start = time.Now()
	op.Released(l.Unlock(op.Releasing(ctx)))
	u.inTime(fmt.Sprintf("Unlock of %q", a.Name), start, soon)
	return nil
}

// hold works under a lock. Like most programs, it checks the lease before it
// begins a write, but cannot check it at the instant of the write.
func (u *user) hold(l *dsync.Lease, op *history.Op, a history.Attempt, d time.Duration) {
	if op.Check() != nil {
		return
	}
	u.held.Store(l, nil)
	defer u.held.Delete(l)
	if a.Mode == driver.Permit {
		u.stay(l, op, a.Permits, d)
		return
	}
	u.store.access(l.Name(), l.Token(), a.Mode, u.label)
	if d == 0 {
		return
	}
	work := time.NewTimer(d)
	defer work.Stop()
	select {
	case <-l.Done():
		op.Lost()
		u.store.access(l.Name(), l.Token(), a.Mode, u.label) // the write had already started
		return
	case <-work.C:
	}
	u.store.access(l.Name(), l.Token(), a.Mode, u.label)
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var (
	errStuck = errors.New("stuck")
	errLeft  = errors.New("left behind")
)

// leftGoroutines waits until there are no more goroutines than at the
// beginning. After a canceled query, pgx takes up to 15 seconds to close a
// connection whose server does not answer.
func leftGoroutines(before int) error {
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<16)
			stacks = stacks[:runtime.Stack(stacks, true)]
			return fmt.Errorf("%w: %d goroutines, %d at the beginning:\n%s", errLeft, runtime.NumGoroutine(), before, stacks)
		}
	}
	return nil
}

// obey carries out a fault inside this process and returns 1. For the order
// "time", it returns the wall clock in seconds.
func (w *worker) obey(line string) (int64, error) {
	kind, rest, _ := strings.Cut(line, " ")
	if kind == "crowd" {
		number, order, _ := strings.Cut(rest, " ")
		i, err := strconv.Atoi(number)
		if err != nil {
			return 0, err
		}
		return w.crowds[i].obey(order)
	}
	var n int64
	if _, err := fmt.Sscan(rest, &n); err != nil {
		return 0, err
	}
	switch kind {
	case "time":
		return time.Now().Unix(), nil
	case "sleep":
		return w.sleep(n), nil
	case "clock":
		setWallClock(n)
		return 1, nil
	}
	return 1, memoryFault(w, kind, int(n))
}

// sleep makes the clocks show a sleep of the machine as soon as a lease is
// held. It returns the number of leases that were held before the sleep if all
// of them reported immediately that they had ended, or -1 if one did not. It
// returns 0 if no lease was held for two seconds.
func (w *worker) sleep(seconds int64) (told int64) {
	var held []*dsync.Lease
	for end := time.Now().Add(2 * time.Second); len(held) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		w.held.Range(func(l, _ any) bool {
			if l := l.(*dsync.Lease); l.Err() == nil {
				held = append(held, l)
			}
			return true
		})
	}
	sleepMachine(seconds)
	for _, l := range held {
		if l.Err() == nil {
			fmt.Fprintf(os.Stderr, "the machine has slept for %d s, and the lease of %q is held until %v from now\n", seconds, l.Name(), time.Until(l.Deadline()))
			return -1
		}
	}
	return int64(len(held))
}
