package conformance

import (
	"sync"
	"time"

	"github.com/go-dsync/dsync/driver"
)

// lossTime is from when on the answers to requests are lost. A driver that reads before it writes never writes if the answer to the read is
// lost.
type lossTime int

const (
	fromStart lossTime = iota
	fromGrant          // from just before the first request that can grant, where Events.Tokens tells of it
)

var losses = []lossTime{fromStart, fromGrant}

// losing makes a client lose the answers to requests.
type losing struct {
	when lossTime
	lose func() // does so, once

	mu    sync.Mutex
	left  int           // of the requests that have not come to where they can be granted
	asked bool          // one of them has
	all   chan struct{} // closed when all have
}

// losing returns how d loses the answers to n requests, which are made at about the same time.
func (d *rawDriver) losing(when lossTime, n int) *losing {
	d.env.need(d.link.LoseAnswers != nil, "Link.LoseAnswers")
	return &losing{when: when, lose: sync.OnceFunc(d.loseAnswers), left: n, all: make(chan struct{})}
}

// of is an option of the requests.
func (l *losing) of(r *driver.Request) {
	if l.when == fromStart {
		l.lose()
		return
	}
	late := time.Now().Add(patience / 3)
	r.Events = &losingEvents{r.Events, sync.OnceFunc(func() { l.arrive(late) })}
}

// arrive is called for each request once, and returns when all are there, or if it is late.
func (l *losing) arrive(late time.Time) {
	l.mu.Lock()
	l.asked = true
	if l.left--; l.left == 0 {
		close(l.all)
	}
	l.mu.Unlock()
	timer := time.NewTimer(time.Until(late))
	defer timer.Stop()
	select {
	case <-l.all:
	case <-timer.C:
	}
	l.lose()
}

// failed returns an error if a request was granted although its answers were lost.
func (l *losing) failed(r *request) error {
	r.result()
	l.mu.Lock()
	never := l.when == fromGrant && !l.asked
	l.mu.Unlock()
	if never && r.lease != nil {
		return r.tryRelease(r.driver.env.ctx) // the driver has nothing to ask for
	}
	return r.failed()
}

type losingEvents struct {
	driver.Events
	arrive func()
}

// Tokens implements driver.Events.
func (v *losingEvents) Tokens() int {
	v.arrive()
	return v.Events.Tokens()
}
