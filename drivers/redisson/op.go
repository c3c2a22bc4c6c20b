package redisson

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redistopic"
)

// op is one request of a caller: to take a lock or to end a hold. A sender carries it out, apart from the caller. So a caller
// that leaves is gone at once, and the answer is not lost: it says what there is to clean up.
type op struct {
	request *driver.Request
	lease   *lease // to release; nil to acquire
	tokens  int    // to take; 0 without tokens
	again   bool   // the attempt was refused before: for a fair lock, it has a place in the queue
	marks   bool   // asks for the mark too; only with tokens
	turn    string // the ticket of a waiter in line, see redistopic.Text; "" without a line
	state   atomic.Int32
	done    chan struct{} // receives a value when the op is answered

	// Written before the op is answered.
	sent  int64 // on the driver's clock, just before the request was handed to the client
	order uint64
	first int64 // the script's answer
	n     int
	moved bool             // the name is marked
	line  redistopic.Place // of one who is refused in a line
	acks  int              // how many replicas confirmed
	err   error
}

// The states of an op.
const (
	queued int32 = iota
	taken        // by a sender
	answered
	dropped // by its caller, before a sender took it: never sent
	left    // by its caller, while a sender had it
)

func (d *Driver) newOp(r *driver.Request, l *lease) *op {
	o := d.ops.Get().(*op)
	o.request, o.lease = r, l
	return o
}

// putOp takes back an answered op.
func (d *Driver) putOp(o *op) {
	*o = op{done: o.done}
	d.ops.Put(o)
}

// keys adds the keys of an op.
func (o *op) keys(d *Driver, keys []string) []string {
	r := o.request
	switch {
	case o.lease != nil:
		return d.releaseKeys(r.Mode, r.Name, r.Hold, keys)
	case r.Mode == driver.Permit:
		return permitKeys(r.Name, keys)
	case r.Mode != driver.Exclusive:
		keys = readWriteKeys(r.Mode, r.Name, r.Hold, true, append(keys, r.Name))
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

// args adds the arguments of the op's script.
func (o *op) args(d *Driver, args []string) []string {
	r := o.request
	switch {
	case o.lease != nil:
		return d.releaseArgs(r.Mode, r.Name, r.Permits, args, r.Hold)
	case r.Mode == driver.Permit:
		return d.acquirePermitsArgs(r, args)
	case r.Mode != driver.Exclusive:
		args = o.readWriteArgs(d, args)
	case d.options.Fair:
		args = o.fairArgs(d, args)
	case o.turn != "":
		args = append(d.wordArgs(append(args, o.turn)), d.lineLabel(), r.Hold, d.milliseconds(r.TTL))
	default:
		args = append(args, r.Hold, d.milliseconds(r.TTL))
	}
	if o.tokens > 0 {
		args = d.tokenArgs(args, r, o.tokens)
	}
	return args
}

// wordArgs adds the two commands by which scripts publish; the second is "" where one is enough.
func (d *Driver) wordArgs(args []string) []string {
	word2 := ""
	if len(d.checked.words) > 1 {
		word2 = d.checked.words[1]
	}
	return append(args, d.checked.words[0], word2)
}

// tokenArgs adds the number of tokens, their kind, and the text about the holder.
func (d *Driver) tokenArgs(args []string, r *driver.Request, tokens int) []string {
	return append(args, strconv.Itoa(tokens), d.tokenKind(), d.holderText(r))
}

// tokenKind is the kind of the tokens for scripts: see take.lua.
func (d *Driver) tokenKind() string {
	if d.options.Fence == FenceOwn {
		return "time"
	}
	return ""
}

// batchArgs adds the arguments of an op for the batch script of fair locks.
func (o *op) batchArgs(d *Driver, args []string) []string {
	const each = 11
	end := len(args) + each
	kind := "a"
	if o.lease != nil {
		kind = "r"
	}
	args = o.args(d, append(args, kind))
	for len(args) < end {
		args = append(args, "")
	}
	return args
}

// read takes the answer of the script.
func (o *op) read(message rueidis.RedisMessage, err error) {
	o.first, o.n, o.moved, o.line = 0, 1, false, redistopic.Place{}
	if err == nil {
		err = message.Error()
	}
	switch {
	case err != nil:
	case !message.IsArray():
		if o.first, err = message.ToInt64(); o.marks && o.first < markedAnswer {
			o.first, o.moved = markedAnswer-o.first, true
		}
	default:
		var block []int64
		block, err = message.AsIntSlice()
		if err == nil && o.turn != "" && len(block) == 4 && block[0] <= 0 { // refused, in a line
			o.first = block[0]
			o.line = redistopic.Place{Ticket: block[1], Granted: block[2], Last: block[3], Free: block[0] == -1}
			break
		}
		if err == nil && o.request.Mode == driver.Permit && len(block) == 2 && block[0] <= 0 && block[1] > 0 { // refused, with the limit
			o.first, o.n = block[0], int(block[1])
			break
		}
		o.moved = err == nil && o.marks && len(block) == 3
		if err == nil && (len(block) != 2 && !o.moved || block[0] < 1 || block[1] < 1 || block[1] > maxTokens) {
			err = errAnswer
		}
		if err == nil {
			o.first, o.n = block[0], int(block[1])
		}
	}
	o.err = err
}

// carryOut has an op carried out and waits for its answer. If ctx ends before, or closing is closed, it returns the reason, and whether the
// op may yet be carried out; carryOut then sees to it that the cleaner undoes the op.
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

// finish hands an answer to the caller, or cleans up in its place.
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
		o.lease.cleaned(o.first)
		return
	case o.lease != nil:
		o.lease.leaveToCleaner()
		return
	}
	g := ghost{name: r.Name, hold: r.Hold, mode: r.Mode, permits: r.Permits, until: o.sent + int64(r.TTL+late), granted: true, place: d.queues(r)}
	left := o.first > 0 || g.place || intends(r)
	if o.err != nil {
		_, doubt := fault(d.life.Context(), r.Name, o.err)
		g.granted, left = !doubt, doubt || g.place && o.again // the request keeps the place that it had before
	}
	if left {
		d.ghosts.Add(&g)
	}
}
