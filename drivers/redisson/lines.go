package redisson

import (
	"sync"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/linked"
)

// lines are the attempts of a driver for fair locks, by name. A release of one of the driver's holds names the attempt that is probably next,
// its heir. If the heir is the first in the queue, the server hands the lock over in the same request, and the heir learns of the grant from
// the answer. If another attempt of the driver is the first, the answer wakes the other attempt.
type lines struct {
	mu     sync.Mutex
	byName map[string]*line // nil in a driver for other locks
}

// line is the attempts for one name.
type line struct {
	places linked.List[place, *place] // in the order in which their first requests were sent
	n      int
	holder *lease // the last lease of the name that the driver was granted, unless the lease is over
}

// place is an attempt. An attempt has at most one request under way by which the lock can be granted: either a request of its own, or the
// release of which the attempt is the heir. Only the first request of an attempt may overlap with such a release: the release hands over
// to an attempt in the queue alone, and the attempt is in the queue when its first request has been carried out.
type place struct {
	linked.Links[place] // in line.places

	request *driver.Request
	queued  bool          // a request was refused. Of the goroutine of the attempt alone, as front is
	front   int           // how many attempts were in front in the queue at the refusal
	wake    chan struct{} // holds a value when the attempt should look at turn

	// Guarded by lines.mu.
	entered bool   // is in line.places
	gone    bool   // its caller has left
	asks    bool   // a request other than the first is under way
	heir    bool   // of a release that is under way
	woken   bool   // while heir
	granted *lease // by such a release
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

// tidy forgets a line that nobody needs. It is called with mu held.
func (ls *lines) tidy(name string, ln *line) {
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

// leave takes an attempt off, with its lease, or nil.
func (ls *lines) leave(p *place, l *lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.gone = true
	if !p.entered {
		return
	}
	p.entered = false
	ln := ls.line(p.request.Name)
	ln.places.Remove(p)
	ln.n--
	if l != nil || ln.holder == p.granted {
		ln.holder = l
	}
	ls.tidy(p.request.Name, ln)
}

// over notes that a lease is over.
func (ls *lines) over(l *lease) {
	if ls.byName == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	name := l.request.Name
	if ln := ls.byName[name]; ln != nil && ln.holder == l {
		ln.holder = nil
		ls.tidy(name, ln)
	}
}

// heirOf returns the heir for a release of the name that is about to be sent, or nil.
func (ls *lines) heirOf(name string) *place {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.byName[name]
	if ln == nil {
		return nil
	}
	p := ln.places.First()
	if p == nil || p.asks || p.heir {
		return nil
	}
	p.heir = true
	return p
}

// inherit takes the answer to the release of which p is the heir: p is granted l, or nil. An unclear answer is nil, too: the release is
// sent again.
func (ls *lines) inherit(p *place, l *lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.heir = false
	if l != nil && !p.gone {
		p.granted = l
		ls.line(p.request.Name).holder = l
	}
	if l != nil || p.woken {
		p.poke()
	}
}

// tell has the attempt with a hold ask, if the attempt is one of the driver's; or, if hold is "", the first attempt.
func (ls *lines) tell(name, hold string) {
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

// poke has an attempt look at turn. It is called with mu held.
func (p *place) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// turn returns the lease that an attempt was granted, or whether the attempt may ask now: an heir waits for the answer to the release, and is
// woken then.
func (ls *lines) turn(p *place, now int64) (l *lease, ask bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.granted != nil && now < p.granted.expires.Load() {
		return p.granted, false
	}
	p.woken = p.heir
	p.asks = !p.heir
	return nil, p.asks
}

// answered notes the answer to the request allowed by turn.
func (ls *lines) answered(p *place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.asks = false
}

// amongOwn reports whether all attempts in front of one are of this driver, as far as can be told from their number.
func (ls *lines) amongOwn(p *place, now int64) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.byName[p.request.Name]
	return ln != nil && ln.holder != nil && now < ln.holder.expires.Load() && p.front < ln.n
}
