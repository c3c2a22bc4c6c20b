package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

const (
	modelName  = "orders"
	modelDir   = modelName + "/"
	modelFloor = 1000 // the floor to which a mark raises the tokens

	modelPermits = 3 // the number of permits

	// modelQuiet is how long nothing may happen while a caller waits for a free
	// lock. It is longer than the time until the first read by a waiter whose
	// watch has not begun, and shorter than the time until the read that
	// compensates for missed events.
	modelQuiet = 3 * time.Second
	modelIdles = 60 // number of pauses of that length
)

// Kinds of failures.
const (
	modelNotFirst = "granted to a key that does not hold the lock"
	modelTwo      = "two holders"
	modelFallen   = "a token that is not above all earlier tokens"
	modelSealed   = "a sealed name is granted"
	modelOver     = "granted on a lease that has ended"
	modelAsleep   = "asleep while the lock is free"
	modelLeft     = "an unwanted key is left"
	modelError    = "an error without a cause"
)

// modelFaults are the numbers of faults of each kind that may still happen.
type modelFaults struct {
	losses      int8 // answers, or requests, which may then arrive later
	breaks      int8 // of streams of watches
	compactions int8
	elections   int8 // in which watches are canceled
	removals    int8 // of the first key by an operator
	evictions   int8 // of the last key by an operator
	cuts        int8 // of a client for longer than its lease lasts
	pauses      int8 // in which time passes and nothing else happens
	cancels     int8 // of calls that wait
	raises      int8 // of the limit of permits, from one less
}

// modelCase is the start of a search.
type modelCase struct {
	name    string
	small   bool     // it is searched to the end each time
	endless bool     // it is never searched to the end
	callers []string // the client of each
	modes   string   // a letter for each: r or w, the number of its permits; any other or none is exclusive
	patient bool     // readers and holders of permits continue as long as another waiter could be granted the lock together with them
	settled int      // this number of callers are granted what they can get, one after another, before the search begins
	rounds  int      // how often each caller locks
	seals   bool     // the first caller seals the name, in place of a release
	marks   bool     // the first caller marks the name before it releases it; if it passes the lock, its heir does
	passes  bool     // the first caller passes the lock to the second, of the same client, which does not request it
	fixed   bool     // the holds have their own leases
	tries   bool     // all but the first caller try once, without waiting
	others  int      // keys of programs other than dsync clients before all callers
	behind  int      // such keys behind the first caller, which stay
	batches bool     // watches also report several revisions together
	ttl     time.Duration
	pause   time.Duration // time that passes in one step
	faults  modelFaults
}

// modelWorld is a server, the links of the clients to it, and the callers of
// the drivers.
type modelWorld struct {
	modelCase
	began time.Time

	mu          sync.Mutex
	server      *modelServer
	owners      map[int64]string // clients by leases
	links       []*modelLink
	drivers     []*Driver
	clients     []*clientv3.Client
	crowd       []*modelCaller
	left        modelFaults
	grants      []modelGrant
	removed     bool           // a key was removed by an operator, or by the end of its lease
	removedKeys map[int64]bool // by an operator, by the revisions at which they were created
	ending      bool
	wrong       string
	detail      string
}

func newModelWorld(c modelCase) *modelWorld {
	w := &modelWorld{
		modelCase:   c,
		began:       time.Now(),
		server:      newModelServer(),
		owners:      make(map[int64]string),
		removedKeys: make(map[int64]bool),
		left:        c.faults,
	}
	w.queueUp("others", c.others)
	if c.faults.raises > 0 {
		w.setLimit(modelPermits - 1)
	}
	for i, client := range c.callers {
		at := slices.IndexFunc(w.links, func(l *modelLink) bool { return l.client == client })
		if at < 0 {
			at = len(w.links)
			w.connect(client)
		}
		name := fmt.Sprintf("%s%d", client, i+1)
		w.crowd = append(w.crowd, &modelCaller{world: w, name: name, link: w.links[at], driver: w.drivers[at], rounds: c.rounds, chief: i == 0,
			mode: c.modeOf(i), permits: c.permitsOf(i), marks: c.marks && (i == 1) == c.passes && i < 2})
	}
	if c.passes {
		w.crowd[0].heir = w.crowd[1]
		w.crowd[1].rounds = 0
	}
	return w
}

// queueUp adds keys of other programs.
func (w *modelWorld) queueUp(client string, n int) {
	for i := range n {
		id := int64(i + 1)
		w.owners[id] = client
		w.server.leases[id] = &modelLease{client: client, ttl: time.Hour, ends: time.Now().Add(time.Hour)}
		t := &modelTxn{modelServer: w.server}
		t.put(&pb.PutRequest{Key: fmt.Appendf(nil, "%s%x", modelDir, id), Lease: id})
		w.server.commit(t.events)
	}
}

// connect adds a client of the library, and a driver on it.
func (w *modelWorld) connect(client string) {
	l := &modelLink{world: w, client: client}
	c := clientv3.NewCtxClient(context.Background())
	c.KV = clientv3.NewKVFromKVClient(modelKV{link: l}, c)
	c.Lease = clientv3.NewLeaseFromLeaseClient(modelLeases{l}, c, time.Second)
	c.Watcher = modelWatcher{l}
	d, err := New(c, nil)
	if err != nil {
		panic(err)
	}
	d.leases = modelLeases{l} // New takes it from the connection, and there is none
	w.links, w.clients, w.drivers = append(w.links, l), append(w.clients, c), append(w.drivers, d)
}

// fail records the first failure. It is called with mu held.
func (w *modelWorld) fail(wrong, format string, args ...any) {
	if w.wrong == "" && !w.ending {
		w.wrong, w.detail = wrong, fmt.Sprintf(format, args...)
	}
}

// modeOf returns the mode of a caller.
func (c modelCase) modeOf(i int) driver.Mode {
	switch {
	case i >= len(c.modes):
	case c.modes[i] == 'r':
		return driver.Read
	case c.modes[i] == 'w':
		return driver.Write
	}
	if c.permitsOf(i) > 0 {
		return driver.Permit
	}
	return driver.Exclusive
}

// permitsOf returns the number of permits that a caller requests.
func (c modelCase) permitsOf(i int) int {
	if i < len(c.modes) && c.modes[i] >= '1' && c.modes[i] <= '9' {
		return int(c.modes[i] - '0')
	}
	return 0
}

// setLimit does the same as SetLimit.
func (w *modelWorld) setLimit(limit int) {
	w.server.writer = "an operator"
	t := &modelTxn{modelServer: w.server}
	t.put(&pb.PutRequest{Key: []byte(limitKey(modelDir)), Value: []byte(strconv.Itoa(limit))})
	w.server.commit(t.events)
}

// modelCaller locks and releases repeatedly.
type modelCaller struct {
	world   *modelWorld
	name    string
	link    *modelLink
	driver  *Driver
	mode    driver.Mode
	permits int
	chief   bool // the first caller
	marks   bool // the caller marks the name before it releases it
	heir    *modelCaller
	rounds  int // number of remaining rounds

	// Guarded by modelWorld.mu.
	at     modelPlace
	lease  driver.Lease
	cancel context.CancelFunc
	key    *mvccpb.KeyValue // the key with which it was granted the lock
}

type modelPlace int8

const (
	modelIdle modelPlace = iota
	modelWaiting
	modelHolding
	modelLeaving
	modelDone
)

// begin calls Acquire.
func (c *modelCaller) begin() {
	w := c.world
	ctx, cancel := context.WithCancel(context.Background())
	c.at, c.cancel = modelWaiting, cancel
	c.rounds--
	r := &driver.Request{Name: modelName, Hold: c.name, Mode: c.mode, TTL: w.ttl, Fixed: w.fixed, NoWait: w.tries && !c.chief, Events: c}
	if r.Permits = c.permits; c.permits > 0 && w.faults.raises == 0 {
		r.Limit = modelPermits
	}
	go func() {
		l, err := c.driver.Acquire(ctx, r)
		w.mu.Lock()
		defer w.mu.Unlock()
		if c.lease = l; err == nil {
			c.granted()
		} else {
			c.refused(err)
		}
	}()
}

func (c *modelCaller) Waiting()    {}
func (c *modelCaller) Tokens() int { return 1 }
func (c *modelCaller) Lost(error)  {}

// made reports whether a caller made a key, or was passed the lock by the
// caller that did.
func (c *modelCaller) made(kv *mvccpb.KeyValue) bool {
	var v struct{ Hold string }
	_ = json.Unmarshal(kv.Value, &v) // which is empty in keys of others
	chief := c.world.crowd[0]
	return v.Hold == c.name || chief.heir == c && v.Hold == chief.name
}

// holderIn returns the key with which a caller holds the lock, or nil.
func (c *modelCaller) holderIn(keys map[string]*mvccpb.KeyValue) *mvccpb.KeyValue {
	for _, kv := range modelHolders(keys, modelDir) {
		if c.made(kv) && c.world.leaseOf(kv) == c.link.client {
			return kv
		}
	}
	return nil
}

// granted checks whether the caller can hold the lock. The token shows the
// revision at which a key of the caller held the lock.
func (c *modelCaller) granted() {
	w := c.world
	s := w.server
	token, n := c.lease.Tokens()
	if c.mode == driver.Permit && n == 0 {
		token = uint64(c.lease.(*hold).token)
	}
	c.at = modelHolding
	base := uint64(0)
	if w.marks && token > modelFloor {
		base = readBase(s)
	}
	revision := int64(token - base)
	if revision > s.revision() {
		w.fail(modelNotFirst, "%s has the token of revision %d, and there are only %d revisions", c.name, revision, s.revision())
		return
	}
	if s.isSealed(modelDir, revision) {
		w.fail(modelSealed, "%s is granted revision %d", c.name, revision)
	}
	if c.key = c.holderIn(s.at(revision)); c.key == nil {
		w.fail(modelNotFirst, "at revision %d of its token, the lock is not held by %s", revision, c.name)
		return
	}
	w.rise(modelGrant{c.name, c.mode, c.key.CreateRevision, token})
	if !w.removed && c.holderIn(s.keys) == nil {
		w.fail(modelNotFirst, "the lock is not held by %s", c.name)
	}
	if !c.lease.Expires().After(time.Now()) {
		w.fail(modelOver, "%s", c.name)
	}
	used := c.permits
	for _, other := range w.crowd {
		if other == c || !other.holds() || !c.holds() {
			continue
		}
		used += other.permits
		if other.mode.Excludes(c.mode) || c.mode == driver.Permit && used > modelLimit(s.keys, modelDir) {
			w.fail(modelTwo, "%s and %s", other.name, c.name)
		}
	}
}

// modelGrant is the record of a grant.
type modelGrant struct {
	caller  string
	mode    driver.Mode
	created int64 // revision of the key
	token   uint64
}

// rise checks that tokens rise in the order of the grants, which is the order
// of the keys: a caller that learns of its grant late, after it has lost the
// lock again, reports a token that is below its heir's. The tokens of Reads are
// not compared with each other.
func (w *modelWorld) rise(g modelGrant) {
	for _, before := range w.grants {
		if before.mode == driver.Read && g.mode == driver.Read || before.mode == driver.Permit || g.mode == driver.Permit {
			continue
		}
		if before.created <= g.created && before.token >= g.token || before.created > g.created && before.token <= g.token {
			w.fail(modelFallen, "%s has token %d, and %s has %d", g.caller, g.token, before.caller, before.token)
		}
	}
	w.grants = append(w.grants, g)
}

// holds reports whether a caller rightly believes that it holds the lock: its
// key was not removed, and its lease has not ended.
func (c *modelCaller) holds() bool {
	return c.at == modelHolding && c.lease.Expires().After(time.Now()) && c.key != nil && !c.world.removedKeys[c.key.CreateRevision]
}

// refused handles the error of an Acquire, which must have a cause.
func (c *modelCaller) refused(err error) {
	w := c.world
	sealed := w.server.isSealed(modelDir, w.server.revision())
	faulty := w.left.losses < w.faults.losses || w.left.cuts < w.faults.cuts || w.left.cancels < w.faults.cancels || w.left.pauses < w.faults.pauses
	faulty = faulty || w.tries && errors.Is(err, driver.ErrLocked) && (c.mode != driver.Read || strings.Trim(w.modes, "r") != "")
	if errors.Is(err, driver.ErrSealed) != sealed && !faulty || !sealed && !faulty {
		w.fail(modelError, "%s: %v", c.name, err)
	}
	if c.at = modelDone; c.heir != nil {
		c.heir.at = modelDone
	}
}

// leave ends a hold in the way that its case specifies, and begins the next
// round.
func (c *modelCaller) leave() {
	w := c.world
	c.at = modelLeaving
	l := c.lease
	go func() {
		ctx := context.Background()
		var err error
		if c.heir != nil {
			c.pass(ctx, l)
			return
		}
		if c.marks {
			err = c.driver.Mark(ctx, l, modelFloor)
			if token, _ := l.Tokens(); err == nil {
				w.mu.Lock()
				w.grants = append(w.grants, modelGrant{c.name, c.mode, c.key.CreateRevision, token})
				w.mu.Unlock()
			}
		}
		if c.chief && w.seals {
			err = c.driver.Seal(ctx, l)
		}
		if !(c.chief && w.seals && err == nil) {
			err = errors.Join(err, l.Release(ctx))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil && w.left == w.faults {
			w.fail(modelError, "%s releases: %v", c.name, err)
		}
		if c.at = modelDone; c.rounds > 0 && !w.ending {
			c.begin()
		}
	}()
}

// pass gives the lock to the heir, or gives it up if that fails.
func (c *modelCaller) pass(ctx context.Context, l driver.Lease) {
	w := c.world
	err := l.(driver.Passer).Pass(ctx, c.heir.name, "")
	if err != nil {
		_ = l.Release(ctx) // which finds out whether there is anything to release
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.left == w.faults {
		w.fail(modelError, "%s passes: %v", c.name, err)
	}
	if c.at = modelDone; err != nil {
		c.heir.at = modelDone
		return
	}
	c.heir.lease = l
	c.heir.granted()
}

// finished reports whether all callers have completed their rounds.
func (w *modelWorld) finished() bool {
	return !slices.ContainsFunc(w.crowd, func(c *modelCaller) bool { return c.at != modelDone })
}

// state is equal for worlds in which the same things can happen. The state of a
// client is all that it has received. The search relies on a client with the
// same state continuing in the same way, and checks that, since it repeats
// earlier steps.
func (w *modelWorld) state() uint64 {
	var h maphash.Hash
	h.SetSeed(modelSeed)
	add := func(v any) { fmt.Fprintf(&h, "%v;", v) }
	add(w.server.mark())
	add(w.server.compacted)
	add(time.Since(w.began))
	add(w.left)
	for _, l := range w.links {
		add(l.told)
		for _, c := range l.calls {
			add(c.what)
			add(c.carried)
			add(c.left)
			add(c.mark)
		}
		for _, watch := range l.watches {
			add(watch.isOver())
			add(watch.on)
			add(watch.next)
			add(watch.from)
		}
	}
	for _, c := range w.crowd {
		add(c.at)
		add(c.rounds)
	}
	return h.Sum64()
}

// settle lets all callers begin, the first of them one after another.
func (w *modelWorld) settle() {
	for i, c := range w.crowd {
		if c.rounds == 0 { // an heir
			continue
		}
		w.mu.Lock()
		c.begin()
		w.mu.Unlock()
		synctest.Wait()
		for steps := w.steps(); i < w.settled && len(steps) > 0; steps = w.steps() {
			at := slices.IndexFunc(steps, func(s modelStep) bool { return !s.fault && !s.leaves })
			if at < 0 {
				break
			}
			w.take(steps[at])
		}
		if i == 0 {
			w.mu.Lock()
			w.queueUp("incumbents", w.behind)
			w.mu.Unlock()
		}
	}
}

// choices returns the steps, including the passage of time if it is only for
// faults.
func (w *modelWorld) choices() []modelStep {
	steps := w.steps()
	if !slices.ContainsFunc(steps, func(s modelStep) bool { return !s.fault }) {
		steps = append(steps, modelStep{name: "nothing happens for a while", time: true, do: w.idle})
	}
	return steps
}

// idle lets time pass until a caller continues, but not for longer than all
// callers may wait.
func (w *modelWorld) idle() {
	for range modelIdles {
		if steps := w.choices(); !steps[len(steps)-1].time || w.isOver() {
			return
		}
		time.Sleep(modelQuiet / modelIdles)
		synctest.Wait()
		w.endLeases()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.crowd {
		if c.at == modelWaiting || c.at == modelLeaving {
			w.fail(modelAsleep, "%s", c.name)
		}
	}
}

func (w *modelWorld) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrong != "" || w.finished()
}

// endLeases ends the leases that were not kept alive.
func (w *modelWorld) endLeases() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, l := range w.server.leases {
		if !time.Now().Before(l.ends) {
			w.removed = true
			w.server.endLease(id)
		}
	}
}

// isLeft reports whether a contender's key is left that is not a seal.
func (w *modelWorld) isLeft() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, kv := range w.server.keys {
		if len(modelQueue(map[string]*mvccpb.KeyValue{string(kv.Key): kv}, modelDir)) > 0 && kv.Lease != 0 && w.leaseOf(kv) != "others" && w.leaseOf(kv) != "incumbents" {
			return true
		}
	}
	return false
}

// finish checks the remaining state when all callers are done.
func (w *modelWorld) finish() {
	for slept := time.Duration(0); w.wrong == "" && w.isLeft(); slept += modelQuiet / modelIdles {
		if slept > modelQuiet {
			w.mu.Lock()
			w.fail(modelLeft, "after %v", modelQuiet)
			w.mu.Unlock()
			return
		}
		steps := w.steps()
		at := slices.IndexFunc(steps, func(s modelStep) bool { return !s.fault })
		if at >= 0 {
			w.take(steps[at])
			continue
		}
		time.Sleep(modelQuiet / modelIdles)
		synctest.Wait()
		w.endLeases()
	}
}

// close ends everything: from now on all requests are answered immediately.
func (w *modelWorld) close() {
	w.mu.Lock()
	w.ending = true
	for _, l := range w.links {
		for _, c := range l.calls {
			if !c.carried {
				c.answer, c.err = c.carry(w.server)
			}
			if !c.left {
				close(c.back)
			}
		}
		l.calls = nil
	}
	for _, c := range w.crowd {
		if c.cancel != nil {
			c.cancel()
		}
	}
	w.mu.Unlock()
	synctest.Wait()
	for i, d := range w.drivers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := d.Close(ctx); err != nil {
			panic(err)
		}
		cancel()
		w.clients[i].Close()
	}
	synctest.Wait()
}

// readBase returns the number that is added to revisions.
func readBase(s *modelServer) uint64 {
	if kv := s.keys[baseKey(modelDir)]; kv != nil {
		n, _ := strconv.ParseUint(string(kv.Value), 10, 64)
		return n
	}
	return 0
}
