package etcd

import (
	"fmt"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// modelStep is a possible next event. It is instantaneous.
type modelStep struct {
	name   string // distinguishes steps that can happen at the same time, and does not depend on what happened before
	client string
	reads  bool // the server
	writes bool
	fault  bool // the step need not happen
	leaves bool // a caller gives up the lock or a place in the queue
	time   bool // time passes
	do     func()
}

// apart reports whether the order of two steps does not matter.
func (s modelStep) apart(other modelStep) bool {
	if s.fault || other.fault || s.time || other.time || s.client == other.client {
		return false
	}
	return !(s.writes && (other.reads || other.writes) || other.writes && (s.reads || s.writes))
}

// take carries out a step and all its consequences.
func (w *modelWorld) take(s modelStep) {
	s.do()
	synctest.Wait()
}

// steps returns the steps in a fair order: if the first step that is not a
// fault is always taken, every caller is served.
func (w *modelWorld) steps() (steps []modelStep) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		if l.cut == nil {
			steps = append(steps, w.stepsOf(l)...)
		}
	}
	for _, c := range w.crowd {
		if c.at == modelHolding && c.link.cut == nil && !(!c.mode.Excludes(c.mode) && w.owes()) {
			steps = append(steps, modelStep{name: c.name + " leaves", client: c.link.client, leaves: true, do: w.locked(func() {
				c.link.tell(c.name, 0)
				c.leave()
			})})
		}
	}
	for key, kv := range w.server.keys {
		if w.leaseOf(kv) == "others" {
			steps = append(steps, modelStep{name: key + " is deleted", client: key, writes: true, leaves: true, do: w.locked(func() {
				w.server.writer = "others"
				w.server.drop(func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == key })
			})})
		}
	}
	return append(steps, w.disasters()...)
}

func (w *modelWorld) locked(do func()) func() {
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		do()
	}
}

// stepsOf returns the steps of a link.
func (w *modelWorld) stepsOf(l *modelLink) (steps []modelStep) {
	for _, c := range l.calls {
		name := l.client + ": " + c.what
		if !c.carried {
			steps = append(steps, modelStep{
				name:   name + " is carried out",
				client: l.client,
				reads:  true,
				writes: c.writes,
				fault:  c.left,
				do:     w.locked(c.carryOut),
			})
		} else {
			steps = append(steps, modelStep{name: name + " is answered", client: l.client, do: w.locked(func() { c.giveBack(nil) })})
		}
		if w.left.losses > 0 && !c.left {
			steps = append(steps, modelStep{name: name + " is lost", client: l.client, fault: true, do: w.locked(func() {
				w.left.losses--
				c.giveBack(errModelLost)
			})})
		}
	}
	for i, watch := range l.watches {
		if !watch.isOver() {
			steps = append(steps, w.stepsOfWatch(l, watch, fmt.Sprintf("%s: watch %d", l.client, i))...)
		}
	}
	return steps
}

func (w *modelWorld) stepsOfWatch(l *modelLink, watch *modelWatch, name string) (steps []modelStep) {
	if !watch.on {
		return []modelStep{{name: name + " begins", client: l.client, reads: true, do: w.locked(func() { watch.begin(w.server) })}}
	}
	told := int64(0)
	for _, all := range []bool{false, true} {
		answer, next := watch.pending(w.server, all)
		revision := next - 1
		if next == 0 { // a watch that ends
			revision = w.server.revision()
		}
		if answer == nil || all && (!w.batches || revision == told) {
			break
		}
		told = revision
		news := name + " reports revision " + strconv.FormatInt(told, 10)
		switch {
		case answer.Created:
			news = name + " reports that it has begun"
		case answer.Canceled:
			news = name + " is canceled"
		case all:
			news += " and all before"
		}
		steps = append(steps, modelStep{name: news, client: l.client, reads: all, do: w.locked(func() {
			l.tell(news, w.server.marks[told-1])
			watch.hear(answer, next)
		})})
	}
	if w.left.breaks > 0 {
		steps = append(steps, modelStep{name: name + " breaks", client: l.client, fault: true, do: w.locked(func() {
			w.left.breaks--
			watch.on = false
		})})
	}
	if w.left.elections > 0 {
		steps = append(steps, modelStep{name: name + " is canceled because there is no leader", client: l.client, fault: true, do: w.locked(func() {
			w.left.elections--
			l.tell("no leader", 0)
			watch.hear(&clientv3.WatchResponse{Canceled: true}, 0)
		})})
	}
	return steps
}

func (c *modelCall) carryOut() {
	w := c.link.world
	w.server.writer = c.link.client
	c.answer, c.err = c.carry(w.server)
	c.carried, c.mark = true, w.server.mark()
	if c.left {
		c.link.forget(c)
	}
}

// giveBack ends a call with its answer or with err. If the server has not
// executed the call yet, it may still do so.
func (c *modelCall) giveBack(err error) {
	if c.link.tell(c.what, c.mark); err != nil {
		c.link.tell(err.Error(), 0)
		c.answer, c.err = nil, err
	}
	if c.left = true; c.carried {
		c.link.forget(c)
	}
	close(c.back)
}

// disasters are the faults that do not belong to a request or a stream.
func (w *modelWorld) disasters() (steps []modelStep) {
	add := func(left *int8, name string, do func()) {
		if *left > 0 {
			steps = append(steps, modelStep{name: name, fault: true, do: func() {
				w.mu.Lock()
				*left--
				for _, l := range w.links {
					l.tell(name, 0)
				}
				w.mu.Unlock()
				do()
			}})
		}
	}
	if w.server.compacted < w.server.revision() {
		add(&w.left.compactions, "a compaction", w.locked(func() { w.server.compacted = w.server.revision() }))
	}
	queue := modelQueue(w.server.keys, modelDir)
	if n := len(queue); n > 0 && queue[0].Lease != 0 {
		add(&w.left.removals, "the first key is removed", w.locked(func() { w.remove(queue[0]) }))
		add(&w.left.evictions, "the last key is removed", w.locked(func() { w.remove(queue[n-1]) }))
	}
	for _, l := range w.links {
		add(&w.left.cuts, l.client+" is cut off for longer than its lease lasts", func() { w.cutOff(l) })
	}
	add(&w.left.raises, "the limit is raised", w.locked(func() { w.setLimit(modelPermits) }))
	add(&w.left.pauses, "time passes", func() {
		time.Sleep(w.pause)
		synctest.Wait()
		w.endLeases()
	})
	for _, c := range w.crowd {
		if c.at == modelWaiting {
			add(&w.left.cancels, c.name+" gives up", c.cancel)
		}
	}
	return steps
}

// remove does the same to a key as ForceUnlock. The holder learns of it only
// later.
func (w *modelWorld) remove(key *mvccpb.KeyValue) {
	w.removedKeys[key.CreateRevision] = true
	w.removed, w.server.writer = true, "an operator"
	w.server.drop(func(kv *mvccpb.KeyValue) bool { return kv == key })
}

// owes reports whether a waiter could be granted the lock together with the
// holders, in a case in which they are patient.
func (w *modelWorld) owes() bool {
	return w.patient && slices.ContainsFunc(modelHolders(w.server.keys, modelDir), func(kv *mvccpb.KeyValue) bool {
		return slices.ContainsFunc(w.crowd, func(c *modelCaller) bool { return c.at == modelWaiting && c.made(kv) })
	})
}

// cutOff blocks all traffic of a client for longer than its lease lasts, while
// the others go on.
func (w *modelWorld) cutOff(l *modelLink) {
	w.mu.Lock()
	l.cut = make(chan struct{})
	w.mu.Unlock()
	for began := time.Now(); time.Since(began) <= w.ttl; {
		time.Sleep(w.ttl / 20)
		synctest.Wait()
		w.endLeases()
		for steps := w.steps(); len(steps) > 0 && !steps[0].fault && !w.isOver(); steps = w.steps() {
			w.take(steps[0])
		}
	}
	w.mu.Lock()
	close(l.cut)
	l.cut = nil
	w.mu.Unlock()
	synctest.Wait()
}
