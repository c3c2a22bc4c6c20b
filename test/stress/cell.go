// Package stress runs processes that lock on real servers while servers,
// networks, clocks and processes fail. From the records of all processes, it
// decides whether every promise was kept. A cell is one backend under one
// fault. The table of all cells shows users what they can expect of the
// backends.
package stress

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	// TTL is the TTL of all locks.
	TTL = 2 * time.Second
	// patience limits an attempt that must be granted. An attempt that takes
	// longer is stuck.
	patience = 60 * time.Second

	workers = 3                     // processes
	pace    = 15 * time.Millisecond // longest pause between two attempts of a goroutine
	warmUp  = 1500 * time.Millisecond
	calm    = 800 * time.Millisecond // shortest pause after each fault
)

// Plan describes how cells are run.
type Plan struct {
	Seed       uint64
	Injections int // injections of the fault in each cell
	Operations int // approximate number in each cell, reached unless the machine is too busy
	// directory for timelines and pictures; if it is "", they are written only
	// after a failure, to a temporary directory
	Out   string
	Plant string // a bug, for tests of this package
	Long  bool   // with faults that take minutes
}

// cell is a running test of one backend under one fault.
type cell struct {
	Plan
	t      *testing.T
	bed    *bed
	fault  *Fault
	seed   uint64
	random *rand.Rand

	dir      string
	files    []string
	own      *history.History
	resource *resource
	names    []string // names for all workers: the shared ones, the patient one, the long one
	// name that the workers read and write; "" if the backend does not support
	// that
	shared string
	// name whose permits the workers acquire; "" if the backend does not
	// support permits
	permits   string
	election  string        // name that the workers campaign for; "" if they do not campaign
	crowded   string        // name that crowds wait for
	unrelated string        // name that the crowds do not use
	joined    time.Duration // how long the last crowd took to start waiting
	workers   []*running
	begun     int // workers started so far

	result Result
}

// running is a worker process with its links to the servers.
type running struct {
	*testenv.Process
	label string
	links []*wire.Wire // one for each server, if the bed has links
}

// run runs a cell on a bed whose servers work, and leaves them working.
func run(t *testing.T, p Plan, b *bed, f *Fault) *Result {
	seed := fnv.New64a()
	fmt.Fprint(seed, p.Seed, b.name, f.Name)
	c := &cell{Plan: p, t: t, bed: b, fault: f, seed: seed.Sum64(), dir: t.TempDir()}
	c.random = rand.New(rand.NewPCG(c.seed, 0))
	c.result = Result{Backend: b.name, Fault: f.Name, Unsafe: b.faults[f.Name], Seed: p.Seed, Bound: b.recover}
	if f.rare {
		c.Injections = max(1, c.Injections/5)
	}
	prefix := fmt.Sprintf("s%x", c.seed&0xffffffff)
	c.names = []string{prefix + ".a", prefix + ".b", prefix + ".patient", prefix + ".long"}
	c.crowded, c.unrelated = prefix+".crowd", prefix+".unrelated"
	if b.info.ReadWrite.Offered {
		c.shared = prefix + ".shared"
	}
	if b.info.Permits.Offered {
		c.permits = prefix + ".permits"
	}
	if c.Plant == plantFlag || c.Plant == "" && (c.Long || shortElections[b.name] == f.Name) {
		c.election = prefix + ".election"
	}
	var err error
	if c.own, err = history.Create(c.file("own"), "own"); err != nil {
		t.Fatal(err)
	}
	c.own.Note(fmt.Sprint("seed ", p.Seed))
	c.resource = startResource(t, c.own)
	start := time.Now()
	c.work()
	c.result.Lasted = time.Since(start)
	c.judge()
	return &c.result
}

// work runs the workers and the schedule.
func (c *cell) work() {
	for range c.bed.processes() {
		c.workers = append(c.workers, c.spawn())
	}
	for _, w := range c.workers {
		c.ready(w)
	}
	c.sleep(warmUp)
	c.await(200)
	for i := range c.Injections {
		c.inject(i)
		c.sleep(calm + c.upTo(calm) + c.bed.rest[c.fault.Name])
	}
	c.sleep(calm)
	c.await(c.Operations)
	c.end()
	c.own.Close()
}

// inject carries out the fault once.
func (c *cell) inject(i int) {
	start := time.Now()
	if c.fault.kills {
		c.fault.inject(c, i) // the fault records each death itself
	} else {
		off := c.own.Fault(c.fault.Name, fmt.Sprint(i))
		c.fault.inject(c, i)
		off()
	}
	c.result.Injected++
	c.result.Faulty += time.Since(start)
}

// invalid records that a fault was not actually injected.
func (c *cell) invalid(format string, args ...any) {
	c.result.Invalid = append(c.result.Invalid, fmt.Sprintf(format, args...))
}

// require waits until the precondition of a fault is met. Otherwise the run
// proves nothing.
func (c *cell) require(there func() bool, otherwise string, args ...any) {
	for end := time.Now().Add(10 * time.Second); !there(); c.sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.invalid(otherwise, args...)
			return
		}
	}
}

// await waits until the workers have completed the given number of operations,
// or have had enough time to do so on this machine.
func (c *cell) await(operations int) {
	for end := time.Now().Add(30 * time.Second); c.resource.written() < operations && time.Now().Before(end); {
		c.sleep(50 * time.Millisecond)
	}
}

func (c *cell) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.t.Context().Done():
	}
}

func (c *cell) upTo(d time.Duration) time.Duration { return time.Duration(c.random.Int64N(int64(d))) }

// outlasts returns a duration that is longer than the TTL.
func (c *cell) outlasts() time.Duration { return TTL + TTL/8 + c.upTo(TTL/2) }

func (c *cell) file(label string) string {
	path := filepath.Join(c.dir, label)
	c.files = append(c.files, path)
	return path
}

// spawn starts a worker.
func (c *cell) spawn() *running {
	r := &running{label: fmt.Sprint("w", c.begun)}
	c.begun++
	addrs := c.bed.addrs()
	if c.fault.refuses && c.bed.front != nil {
		addrs = slices.Clone(c.bed.front)
	}
	if c.bed.links {
		for i := range addrs {
			link, addr := testenv.Wire(c.t, addrs[i])
			r.links, addrs[i] = append(r.links, link), addr
		}
	}
	w := &worker{
		Label: r.label, URL: c.bed.url(addrs), History: c.file(r.label), Resource: c.resource.path,
		Names: c.names[:2], Patient: c.names[2], Long: c.names[3], Shared: c.shared, Permits: c.permits, Forgets: c.result.Unsafe != "", Election: c.election, Seed: c.seed + uint64(c.begun), Clients: c.bed.clients, Plant: c.Plant,
		Pace: c.bed.pace, Hold: TTL, Bounded: c.fault.bounded,
	}
	if c.fault.apart {
		// some locks are held from the beginning of the fault until servers end
		// sessions that other servers confirm
		w.Hold = 3 * TTL
		w.Quiet = c.begun%3 != 0
	}
	text, err := json.Marshal(w)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Process = testenv.Spawn(c.t, "worker", workerVariable+"="+string(text))
	return r
}

// ready waits until the worker has been granted a lock.
func (c *cell) ready(w *running) {
	if got := w.Line(); got != "ready" {
		c.t.Fatalf("%s printed %q, want ready", w.label, got)
	}
}

// victim returns the worker that holds the long lock or, sometimes, the leader
// or a worker that has permits. One time in four, or if there is no such
// worker, it returns a random worker.
func (c *cell) victim() int {
	who := c.resource.holder(c.names[3])
	if c.permits != "" && c.random.IntN(3) == 0 {
		who = c.resource.tally.holder()
	} else if c.election != "" && c.random.IntN(2) == 0 {
		who = c.resource.holder(c.election)
	}
	if holder := c.worker(who); holder >= 0 && c.random.IntN(4) > 0 {
		return holder
	}
	return c.random.IntN(len(c.workers))
}

// holder returns the worker that holds the long lock according to the resource,
// or -1.
func (c *cell) holder() int { return c.worker(c.resource.holder(c.names[3])) }

// worker returns the worker of a user, or -1.
func (c *cell) worker(who string) int {
	label, _, _ := strings.Cut(who, ".")
	return slices.IndexFunc(c.workers, func(w *running) bool { return w.label == label })
}

// end lets all workers finish concurrently and checks what is left on the
// servers.
func (c *cell) end() {
	for _, w := range c.workers {
		w.Send("end")
	}
	for _, w := range c.workers {
		last := ""
		for line := range w.Lines { // until the worker has ended
			last = line
		}
		if err := w.Wait(); err != nil || last != "ended" {
			c.result.Failed = append(c.result.Failed, fmt.Sprintf("%s ended with %q and %v", w.label, last, err))
		}
		w.each((*wire.Wire).Heal) // the servers notice the end of connections that were silent
	}
	names := append(c.names[:len(c.names):len(c.names)], c.crowded, c.unrelated)
	for _, name := range []string{c.shared, c.permits, c.election} {
		if name != "" {
			names = append(names, name)
		}
	}
	left := c.bed.leftBehind(names)
	if c.fault.jumps { // the jump extends locks that could not be released
		c.t.Logf("not promised: %d remains of locks: %v", len(left), left)
		return
	}
	c.result.Left = left
}
