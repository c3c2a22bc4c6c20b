package redisson

import (
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
)

// lines are the attempts of a driver for fair locks, by name. A release of one of the driver's holds names the attempt that is probably next,
// its heir. If the heir is the first in the queue, the server hands the lock over in the same request, and the heir learns of the grant from
// the answer. If another attempt of the driver is the first, the answer wakes the other attempt. With the grant to an heir comes a run, if attempts of
// the driver stand right behind the heir.
type lines struct {
	abandon func(name string, holds []string) // has the cleaner take holds out of the queue; called with mu held
	alone   time.Duration                     // how long an attempt with none but others of its driver in front waits without listening for messages

	mu     sync.Mutex
	byName map[string]*line // nil in a driver for other locks
}

// line is the attempts for one name.
type line struct {
	places linked.List[place, *place] // in the order in which their first requests were sent
	n      int
	holder *lease // the last lease of the name that the driver was granted, unless the lease is over
	run    *run   // of the holder; nil if it has none
	reach  int    // how many attempts the next release names for a run, beside the heir; 0 is 1
}

// place is an attempt. An attempt has at most one request under way by which the lock can be granted: either a request of its own, or the
// release of which the attempt is the heir. The first request of an attempt may overlap with such a release: the first request puts the attempt
// into the server's queue, and a release hands over to attempts in the queue alone, so one of the two grants the lock at most.
type place struct {
	linked.Links[place] // in line.places

	request *driver.Request
	queued  bool          // a request was refused. Of the goroutine of the attempt alone, as front is
	front   int           // how many attempts were in front in the queue at the refusal
	wake    chan struct{} // holds a value when the attempt should call grantOrAsk

	// Guarded by lines.mu.
	entered bool   // is in line.places
	gone    bool   // its caller has left
	waits   bool   // the first request is answered, and the attempt calls grantOrAsk when it is woken
	asks    bool   // a request other than the first is under way
	heir    bool   // of a release that is under way
	woken   bool   // while heir
	granted *lease // by such a release, or out of a run
}

func newPlace(r *driver.Request) *place {
	return &place{request: r, wake: make(chan struct{}, 1)}
}

// line returns the line of a name, and makes it if there is none. It is called with mu held.
func (ls *lines) line(name string) *line {
	ln := ls.byName[name]
	if ln == nil {
		ln = &line{}
		ls.byName[name] = ln
	}
	return ln
}

// forgetIfEmpty forgets a line without attempts and without a holder. It is called with mu held.
func (ls *lines) forgetIfEmpty(name string, ln *line) {
	if ln.n == 0 && ln.holder == nil {
		delete(ls.byName, name)
	}
}

// enter adds an attempt when its first request is about to be sent, unless its caller has left.
func (ls *lines) enter(p *place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.gone || p.entered {
		return
	}
	p.entered = true
	ln := ls.line(p.request.Name)
	ln.places.Add(p)
	ln.n++
}

// leave takes an attempt off, with its lease, or nil. It returns the lease, or one that the attempt was granted at this very moment.
func (ls *lines) leave(p *place, l *lease, now int64) *lease {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.gone = true
	if !p.entered {
		return l
	}
	p.entered = false
	ln := ls.line(p.request.Name)
	ln.places.Remove(p)
	ln.n--
	if l == nil && p.waits && p.holds(now) { // else the cleaner removes the hold, as an answer was lost
		l = p.granted
	}
	if l != nil || ln.holder == p.granted {
		ls.hold(p.request.Name, ln, l)
	}
	ls.forgetIfEmpty(p.request.Name, ln)
	return l
}

// holds reports whether the attempt was granted a lease that lasts. It is called with mu held.
func (p *place) holds(now int64) bool { return p.granted != nil && now < p.granted.expires.Load() }

// await notes that the first request of an attempt was refused, and that the attempt waits. It reports whether the holder and all attempts in front are
// of this driver, as far as can be told from their number.
func (ls *lines) await(p *place, now int64) (amongOwn bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.waits = true
	ln := ls.byName[p.request.Name]
	return ln != nil && ln.holder != nil && now < ln.holder.expires.Load() && p.front < ln.n+ln.run.stale()
}

// over notes that a lease is over.
func (ls *lines) over(l *lease) {
	if ls.byName == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln := ls.heldBy(l); ln != nil {
		ls.hold(l.request.Name, ln, nil)
		ls.forgetIfEmpty(l.request.Name, ln)
	}
}

// chooseHeir makes the first attempt of a line the heir of a release that is about to be sent, and returns the attempt, or nil, and those behind that may be
// its run.
func (ls *lines) chooseHeir(name string) (heir *place, behind []*place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.byName[name]
	if ln == nil {
		return nil, nil
	}
	p := ln.places.First()
	if p == nil || p.asks || p.heir {
		return nil, nil
	}
	p.heir = true
	most := min(max(ln.reach, 1), ln.n-1)
	if most == 0 || p.request.Fixed {
		return p, nil
	}
	behind = make([]*place, 0, most)
	for next := range ln.places.All() {
		if len(behind) == most {
			break
		}
		if next != p {
			behind = append(behind, next)
		}
	}
	return p, behind
}

// inherit takes the answer to the release of which p is the heir: l is the lease that the release granted to p, with its run, or nil if the release
// granted p nothing, or if the answer is missing: then the release is sent again.
func (ls *lines) inherit(p *place, l *lease, r *run) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.heir = false
	if l != nil && !p.gone {
		p.granted = l
		ln := ls.line(p.request.Name)
		ls.hold(p.request.Name, ln, l)
		ln.begin(r)
	}
	if l != nil || p.woken {
		p.poke()
	}
}

// wake has the attempt of this driver with the given hold ask, if there is one. With the hold "" the first attempt of the line asks.
func (ls *lines) wake(name, hold string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.byName[name]
	if ln == nil {
		return
	}
	for p := range ln.places.All() {
		if hold == "" || p.request.Hold == hold {
			p.poke()
			return
		}
	}
}

// poke has an attempt call grantOrAsk. It is called with mu held.
func (p *place) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// grantOrAsk returns the lease that an attempt was granted, or whether the attempt may ask now, which is then noted until answered is called. An
// heir does not ask, but waits for the answer to the release, and is woken then.
func (ls *lines) grantOrAsk(p *place, now int64) (l *lease, ask bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.holds(now) {
		return p.granted, false
	}
	p.woken = p.heir
	p.asks = !p.heir
	return nil, p.asks
}

// answered notes the answer to the request that grantOrAsk allowed.
func (ls *lines) answered(p *place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.asks = false
}
