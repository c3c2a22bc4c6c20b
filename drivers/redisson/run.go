package redisson

import (
	"time"

	"github.com/go-dsync/dsync/driver"
)

const (
	// maxRun is how many attempts of one client a grant lets follow one another, the heir of the release included.
	maxRun = maxTokens

	// runFor is how long after that grant the lock goes from one to the next without a request.
	runFor = 100 * time.Millisecond
)

// run is what follows a grant by a release: attempts of the same driver that stood right behind the heir in the queue. The lock goes from one to the next
// inside the process, and nobody is overtaken. For the server the hold of the heir has the lock all the while, and those whom the lock has passed stay in the
// queue, until the release that ends the run takes them out. If the process dies, all of them are thrown out 5 s after the end of the hold: see follow in fairrelease.lua.
type run struct {
	since  int64    // when the release was sent, on the driver's clock
	next   []*place // in the order of the queue
	served []string // the holds of those whom the lock has reached, without the heir's
	first  uint64   // the token of the next one; 0 without tokens
	tokens int      // how many there are
}

// stale is how many places in the queue belong to attempts that the lock has reached.
func (r *run) stale() int {
	if r == nil {
		return 0
	}
	return len(r.served)
}

// heldBy returns the line of which the lease is the holder, or nil. It is called with mu held.
func (ls *lines) heldBy(l *lease) *line {
	if ln := ls.byName[l.request.Name]; ln != nil && ln.holder == l {
		return ln
	}
	return nil
}

// hold makes l the holder, nil if there is none, and ends the run of the one before. It is called with mu held.
func (ls *lines) hold(name string, ln *line, l *lease) {
	if ln.holder != l {
		ls.endRun(name, ln)
	}
	ln.holder = l
}

// begin makes r the run of the holder, if any. The next release names twice as many attempts, if clients with others in between do not make that idle.
// It is called with lines.mu held.
func (ln *line) begin(r *run) {
	ln.run, ln.reach = r, 1
	if r != nil {
		ln.reach = min(2*len(r.next)+1, maxRun-1)
	}
}

// endRun leaves to the cleaner what a run has left in the queue. It is called with mu held.
func (ls *lines) endRun(name string, ln *line) {
	if ln.run != nil && len(ln.run.served) > 0 {
		ls.abandon(name, ln.run.served)
	}
	ln.run = nil
}

// renewed ends the run of a lease that lasts long enough to be renewed.
func (ls *lines) renewed(l *lease) {
	if ls.byName == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln := ls.heldBy(l); ln != nil {
		ls.endRun(l.request.Name, ln)
	}
}

// servedBy returns the holds that the lock has reached in the run of a lease that is about to be released, which are to leave the queue with it, and ends the
// run, but for these: they are the line's until a release has taken them out, or the lease is over.
func (ls *lines) servedBy(l *lease) []string {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.heldBy(l)
	if ln == nil || ln.run == nil {
		return nil
	}
	ln.run.next = nil
	return ln.run.served
}

// takenOut notes that a release has taken out of the queue what servedBy has returned.
func (ls *lines) takenOut(l *lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln := ls.heldBy(l); ln != nil {
		ln.run = nil
	}
}

// passOn gives the lock from the lease to the next of its run, in place of a release, and reports whether it did.
func (l *lease) passOn() bool {
	d := l.driver
	if d.lines.byName == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != held || d.life.Open().Err() != nil {
		return false
	}
	if !d.lines.pass(l, d.now()) {
		return false
	}
	l.phase = over
	d.forget(l)
	return true
}

// pass is passOn for the line. Nothing but a renewal may be under way for l, whose l.mu is held.
func (ls *lines) pass(l *lease, now int64) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.heldBy(l)
	if ln == nil || ln.run == nil {
		return false
	}
	r, ttl := ln.run, int64(l.request.TTL)
	if l.request.Fixed || now-r.since >= min(int64(runFor), ttl/3) || l.expires.Load()-now < ttl/2 || l.tokens > 0 && r.tokens == 0 {
		return false
	}
	for len(r.next) > 0 && r.next[0].gone {
		r.next = r.next[1:]
	}
	if len(r.next) == 0 {
		return false
	}
	p := r.next[0]
	if !p.waits || p.asks || p.heir || p.request.Fixed || p.request.TTL != l.request.TTL {
		return false
	}
	r.next = r.next[1:]
	r.served = append(r.served, p.request.Hold)
	p.granted = l.passed(p.request, r)
	ln.holder = p.granted
	p.poke()
	return true
}

// passed is the lease of the next in a run, by the hold that the server knows.
func (l *lease) passed(request *driver.Request, r *run) *lease {
	known := *request
	known.Hold = l.request.Hold
	next := l.driver.newLease(&known, 0, 0, 0)
	next.lasts = l.lasts
	next.expires.Store(l.expires.Load())
	if l.tokens > 0 {
		next.first, next.tokens = r.first, 1
		r.first++
		r.tokens--
	}
	return next
}

// beginRun returns the run of a lease that a release has granted with some attempts behind, and takes the tokens of the run off the lease, or nil.
func (l *lease) beginRun(sent int64, behind []*place) *run {
	if len(behind) == 0 {
		return nil
	}
	r := &run{since: sent, next: behind}
	if l.tokens > 0 {
		own := int32(min(max(l.request.Events.Tokens(), 1), int(l.tokens)))
		r.first, r.tokens = l.first+uint64(own), int(l.tokens-own)
		l.tokens = own
	}
	return r
}

// holdsOf returns the holds of attempts.
func holdsOf(places []*place) []string {
	holds := make([]string, len(places))
	for i, p := range places {
		holds[i] = p.request.Hold
	}
	return holds
}
