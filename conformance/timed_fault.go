package conformance

import (
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// faultTime is when the network between a client and its backend begins to fail. A driver that reads before it writes never comes to write
// if the network fails before the read.
type faultTime int

const (
	fromStart faultTime = iota
	fromGrant           // from just before the first request that can grant, if the driver calls Events.Tokens before
)

var faultTimes = []faultTime{fromStart, fromGrant}

// timedFault is a fault of a client's network that begins at a certain point of its requests.
type timedFault struct {
	when  faultTime
	begin func() // once

	mu    sync.Mutex
	left  int           // requests that are not yet at the point where they can be granted
	asked bool          // one of them has
	all   chan struct{} // closed when all have
}

// losing has d lose the answers to n requests, which are made at about the same time.
func (d *rawDriver) losing(when faultTime, n int) *timedFault {
	d.env.need(d.link.LoseAnswers != nil, "Link.LoseAnswers")
	return newTimedFault(when, n, d.loseAnswers)
}

// hanging returns how d has no answer to one request.
func (d *rawDriver) hanging(when faultTime) *timedFault {
	d.env.need(d.link.Hang != nil, "Link.Hang")
	return newTimedFault(when, 1, d.hang)
}

func newTimedFault(when faultTime, n int, begin func()) *timedFault {
	return &timedFault{when: when, begin: sync.OnceFunc(begin), left: n, all: make(chan struct{})}
}

// of is an option of the requests.
func (f *timedFault) of(r *driver.Request) {
	if f.when == fromStart {
		f.begin()
		return
	}
	late := time.Now().Add(patience / 3)
	r.Events = &faultEvents{r.Events, sync.OnceFunc(func() { f.arrive(late) })}
}

// arrive is called for each request once, and returns when all are there, or if it is late.
func (f *timedFault) arrive(late time.Time) {
	f.mu.Lock()
	f.asked = true
	if f.left--; f.left == 0 {
		close(f.all)
	}
	f.mu.Unlock()
	timer := time.NewTimer(time.Until(late))
	defer timer.Stop()
	select {
	case <-f.all:
	case <-timer.C:
	}
	f.begin()
}

// failed returns an error if a request was granted although it had no answer.
func (f *timedFault) failed(r *request) error {
	r.result()
	f.mu.Lock()
	never := f.when == fromGrant && !f.asked
	f.mu.Unlock()
	if never && r.lease != nil {
		return r.tryRelease(r.driver.env.ctx) // the driver has nothing to ask for
	}
	return r.failed()
}

type faultEvents struct {
	driver.Events
	arrive func()
}

// Tokens implements driver.Events.
func (v *faultEvents) Tokens() int {
	v.arrive()
	return v.Events.Tokens()
}
