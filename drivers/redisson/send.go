package redisson

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdriver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// op is one request from a caller, to acquire a lock or to end a hold. A sender
// executes it, so a caller can leave immediately without losing the answer,
// which determines the cleanup.
type op struct {
	request *driver.Request
	lease   *lease // to release; nil to acquire
	tokens  int    // number of tokens to take; 0 without tokens
	again   bool   // the attempt was refused before: for a fair lock, it has a place in the queue
	marks   bool   // queries the mark too; only with tokens
	turn    string // the ticket of a waiter (see redistopic.Text); "" without a ticket
	state   atomic.Int32
	done    chan struct{} // receives a value when the op is answered

	// Written before the op is answered.
	sent  int64 // on the driver's clock, just before the request was handed to the client
	order uint64
	answer
	acks int // number of replicas that confirmed
	err  error
}

// The states of an op.
const (
	queued int32 = iota
	taken        // taken by a sender
	answered
	dropped // given up by its caller before a sender took it: never sent
	left    // given up by its caller while a sender had it
)

func (d *Driver) newOp(r *driver.Request, l *lease) *op {
	o := d.ops.Get().(*op)
	o.request, o.lease = r, l
	return o
}

// putOp returns an answered op to the pool.
func (d *Driver) putOp(o *op) {
	*o = op{done: o.done}
	d.ops.Put(o)
}

func (o *op) keys(d *Driver, keys []string) []string {
	r := o.request
	switch {
	case o.lease != nil:
		return d.releaseKeys(r, keys)
	case r.Mode == driver.Permit:
		return permitKeys(r.Name, keys)
	case r.Mode != driver.Exclusive:
		keys = readWriteKeys(r, true, append(keys, r.Name))
	default:
		keys = d.fairKeys(r.Name, append(keys, r.Name))
	}
	if o.tokens > 0 {
		keys = append(keys, d.tokenKey(r.Name))
	}
	if o.marks {
		keys = append(keys, prefixName(markPrefix, r.Name))
	}
	return keys
}

func (o *op) args(d *Driver, args []string) []string {
	r := o.request
	switch {
	case o.lease != nil:
		return d.releaseArgs(r, args, r.Hold)
	case r.Mode == driver.Permit:
		return append(permitArgs(r.Hold, r.Permits, args), strconv.Itoa(r.Limit), redisdriver.TTLText(r.TTL))
	case r.Mode != driver.Exclusive:
		args = o.readWriteArgs(d, args)
	case d.options.Fair:
		args = o.fairArgs(d, args)
	case o.turn != "":
		args = append(d.wordArgs(append(args, o.turn)), d.lineLabel(), r.Hold, redisdriver.TTLText(r.TTL))
	default:
		args = append(args, r.Hold, redisdriver.TTLText(r.TTL))
	}
	if o.tokens > 0 {
		args = append(args, strconv.Itoa(o.tokens), d.tokenKind(), holderText(r))
	}
	return args
}

// wordArgs adds the two commands with which scripts publish; the second is ""
// if one is enough.
func (d *Driver) wordArgs(args []string) []string {
	word2 := ""
	if len(d.checked.words) > 1 {
		word2 = d.checked.words[1]
	}
	return append(args, d.checked.words[0], word2)
}

// tokenKind returns the kind of the tokens for scripts: see take.lua.
func (d *Driver) tokenKind() string {
	if d.options.Fence == FenceOwn {
		return "time"
	}
	return ""
}

// The codes of answers: see acquire.lua.
const (
	grantedCode   = "granted"
	heldCode      = "held"
	elsewhereCode = "elsewhere"
	sealedCode    = "sealed"
	limitCode     = "limit" // see permitacquire.lua
)

// answer is a script's answer to an op.
type answer struct {
	code   string
	value  int64 // of a grant: the first token; of a release: the number of clients that were notified
	n      int   // of tokens
	marked bool  // the name is marked
	// time until the hold in the way expires, unless it is renewed; negative if
	// it does not expire
	left  time.Duration
	place redistopic.Place // for a request that is refused and has a ticket
	limit int              // of permits
}

// readAnswer reads a number, which means a grant or a release, or a code
// followed by numbers.
func readAnswer(message rueidis.RedisMessage) (a answer, err error) {
	if !message.IsArray() {
		a.code, a.n = grantedCode, 1
		a.value, err = message.ToInt64()
		return a, err
	}
	parts, err := message.ToArray()
	var numbers [4]int64
	if err != nil || len(parts) == 0 || len(parts) > 1+len(numbers) {
		return a, cmp.Or(err, redisdriver.ErrAnswer)
	}
	if a.code, err = parts[0].ToString(); err != nil {
		return a, err
	}
	for i, part := range parts[1:] {
		if numbers[i], err = part.ToInt64(); err != nil {
			return a, err
		}
	}
	switch a.code {
	case grantedCode:
		a.value, a.n, a.marked = numbers[0], int(numbers[1]), numbers[2] == 1
		if a.value < 1 || a.n < 1 || a.n > maxTokens {
			err = redisdriver.ErrAnswer
		}
	case heldCode, elsewhereCode:
		a.left = -1
		if ms := numbers[0]; ms >= 0 && ms <= maxTTL.Milliseconds() {
			a.left = time.Duration(ms) * time.Millisecond
		}
		if len(parts) == 3 {
			a.limit = int(numbers[1])
		} else {
			a.place = redistopic.Place{Ticket: numbers[1], Granted: numbers[2], Last: numbers[3], Free: numbers[0] == 0}
		}
	case sealedCode, limitCode:
	default:
		err = redisdriver.ErrAnswer
	}
	return a, err
}

func (o *op) read(message rueidis.RedisMessage, err error) {
	if err = cmp.Or(err, message.Error()); err == nil {
		o.answer, err = readAnswer(message)
	}
	if err == nil && o.lease == nil && o.code == grantedCode && o.value < 1 {
		err = redisdriver.ErrAnswer
	}
	o.err = err
}

// carryOut lets a sender execute an op. If ctx ends or closing is closed first,
// it returns the reason, and reports whether the op may still be executed. The
// cleaner undoes an op that may still be executed.
func (d *Driver) carryOut(ctx context.Context, o *op, closing <-chan struct{}) (err error, doubt bool) {
	if d.carryDirect(ctx, o) {
		return nil, false
	}
	d.sender.add(o)
	select {
	case <-o.done:
		return nil, false
	case <-ctx.Done():
		err = ctx.Err()
	case <-closing:
		err = driver.ErrClosed
	}
	if o.state.CompareAndSwap(queued, dropped) {
		d.direct.busy.Add(-1)
		return err, false
	}
	d.ghosts.Expect(1)
	if o.state.CompareAndSwap(taken, left) {
		return err, true
	}
	d.ghosts.Expect(-1)
	<-o.done // answered at this very moment
	return nil, false
}

// finish hands an answer to the caller, or cleans up if the caller has left.
func (d *Driver) finish(o *op) {
	d.direct.busy.Add(-1)
	if o.state.CompareAndSwap(taken, answered) {
		o.done <- struct{}{}
		return
	}
	defer d.ghosts.Expect(-1)
	r := o.request
	switch {
	case o.lease != nil && o.err == nil:
		o.lease.cleaned(o.value)
		return
	case o.lease != nil:
		o.lease.leaveToCleaner()
		return
	}
	g := ghost{request: r, until: o.sent + int64(r.TTL+late), granted: true, place: d.queues(r)}
	left := o.err == nil && o.code == grantedCode || g.place || intends(r)
	if o.err != nil {
		_, doubt := redisdriver.Fault(d.life.Context(), r.Name, o.err)
		// the request keeps the place or the intent that it had before
		g.granted, left = !doubt, doubt || (g.place || intends(r)) && o.again
	}
	if left {
		d.ghosts.Add(&g)
	}
}

// direct is the fast path for a single caller, and for up to fewAtOnce callers
// of a fair lock. These callers send their requests themselves. The fast path
// is open if the driver opened the client and the client's connection has
// answered recently. Such a client honors the end of a context whenever it
// waits for an answer, and sends everything over one connection. If the caller
// leaves, the cleanup is sent after the request over the same connection, so
// its result is final, unless another connection was made in the meantime.
type direct struct {
	busy     atomic.Int32 // ops in progress, on the fast path or not
	answered atomic.Int64 // when the last answered op was sent, on the driver's clock
}

const (
	// trusted is how long a connection counts as answering after an answer.
	trusted = int64(time.Second)

	// fewAtOnce is the maximum number of callers of a fair lock that may use
	// the fast path at the same time. These callers usually want one name, and
	// requests for one name cannot be combined anyway.
	fewAtOnce = 3

	// never is used in place of the time of the last answered op while the
	// latest op has no answer.
	never = math.MinInt64 / 2

	// unordered is the order of requests that other requests may overtake.
	// Requests that share any other order reach the server in the order in
	// which they were sent.
	unordered = 0
)

// order returns the order of the requests that are sent now.
func (d *Driver) order() uint64 {
	if d.cluster || d.dialer == nil || d.options.WaitReplicas > 0 {
		return unordered
	}
	return d.dialer.Made()
}

// carryDirect executes an op on the fast path, if it is open.
func (d *Driver) carryDirect(ctx context.Context, o *op) bool {
	if d.dialer == nil || d.cluster || d.options.WaitReplicas > 0 || d.life.Now()-d.direct.answered.Load() > trusted {
		return false
	}
	limit := int32(1)
	if d.options.Fair {
		limit = fewAtOnce
	}
	if d.direct.busy.Add(1) > limit {
		d.direct.busy.Add(-1)
		return false
	}
	defer d.direct.busy.Add(-1)
	o.order = d.order()
	var keys [3]string
	var args [6]string
	d.sendOp(ctx, o, keys[:0], args[:0])
	return true
}

func (d *Driver) heard(sent int64, answer error) {
	last := d.direct.answered.Load()
	switch {
	case answer != nil:
		d.direct.answered.Store(never)
	case sent-last > trusted/8: // not always, to keep the cost low
		d.direct.answered.Store(sent)
	}
}
