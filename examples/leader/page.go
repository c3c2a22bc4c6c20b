//go:build unix

package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

//go:embed page.html
var pageHTML []byte

// state is the content of a page.
type state struct {
	Node   string // the owner of the page
	Leader string // the URL of the leader's page; "" without a leader
	Plan   plan   // the last plan
}

// page is the web page of a node. It shows a state, and each change of the
// state immediately.
type page struct {
	mu      sync.Mutex
	state   state
	changed chan struct{} // closed and replaced by each change
}

func newPage() *page { return &page{changed: make(chan struct{})} }

// update lets change modify the state.
func (p *page) update(change func(*state)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.state
	if change(&p.state); p.state != before {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// look returns the state, and a channel that is closed when the state has
// changed.
func (p *page) look() (state, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, p.changed
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/events" {
		p.stream(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(pageHTML) // an error means that the client is gone
}

// stream sends the states as server-sent events, until the browser leaves.
func (p *page) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		s, changed := p.look()
		text, err := json.Marshal(s)
		if err != nil {
			return
		}
		if _, err = fmt.Fprintf(w, "data: %s\n\n", text); err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
