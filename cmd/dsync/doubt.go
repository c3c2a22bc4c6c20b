package main

import (
	"context"
	"time"
)

// Where a name is in use, and where somebody seems to be behind, it is looked again: between two requests of a holder, or of this
// command, it can look so, and who is behind may share a name with programs that are not.
const (
	moreLooks   = 20 // at least
	steadyLooks = 3  // in a row that show one hold are enough
	lookEvery   = 50 * time.Millisecond
	idleLooks   = 20 // of a name that nobody holds, until only one in so many is made
	enough      = 30 // points against a client, with nothing to its favour

	// Points for one look. A hold that was over when it was looked at again may have been one that was just taken or given back.
	forBrief, forLasting = 1, 10

	followEvery = time.Millisecond
	follows     = 10
)

// doubt is what was seen of a name. Clients are judged each for itself.
type doubt struct {
	clients map[string]*sight
	order   []string // in which they were seen
	hold    string   // the last
	steady  int      // how often it was seen in a row
	idle    int      // looks in a row at which nobody held it
	over    bool     // nobody can be behind any more
}

// sight is what was seen of one client of a name. Those who wait in vain are one.
type sight struct {
	behind string // how it was seen last
	points int
	clear  bool // it was seen to use the name as it should
}

// open reports whether to look at the name again after the first look.
func (r *nameReport) open() bool { return r.Behind != "" || r.State == stateHeld }

func (d *doubt) see(r *nameReport) {
	switch {
	case r.Hold == "" || r.Blocked > 0:
		d.hold, d.steady = "", 0
	case r.Hold != d.hold:
		d.hold, d.steady = r.Hold, 1
	default:
		d.steady++
	}
	d.over = r.State == stateMoved && r.Blocked == 0
	if r.State == stateMoved { // who is behind since then waits in vain
		for _, s := range d.clients {
			s.clear = true
		}
	}
	if r.State == stateIdle {
		d.idle++
		return
	}
	d.idle = 0
	s := d.clients[r.client]
	if s == nil {
		s = &sight{}
		d.clients[r.client] = s
		d.order = append(d.order, r.client)
	}
	if r.Behind == "" {
		// What is held on the old backend alone while somebody else has the new one says nothing: it may have changed hands in between.
		s.clear = s.clear || r.HeldOn != "old"
		return
	}
	if r.State == stateMoved {
		s.clear = false
	}
	switch {
	case r.client == strangers:
		s.points += enough
	case r.brief:
		s.points += forBrief
	default:
		s.points += forLasting
	}
	s.behind = r.Behind
}

// due reports whether to look at the name now. Where nobody has held it for a while it is looked at less often.
func (d *doubt) due(looks int) bool { return d.idle < idleLooks || looks%idleLooks == 0 }

// settled reports whether more looks would tell no more. Somebody who holds the name for long hides the others only for a time.
func (d *doubt) settled(looks int, lasting bool) bool {
	if lasting {
		return d.over || looks > moreLooks && d.verdict() != ""
	}
	return d.over || d.steady >= steadyLooks
}

// verdict says why somebody is behind, or nothing.
func (d *doubt) verdict() string {
	for _, c := range d.order {
		if s := d.clients[c]; !s.clear && s.points >= enough {
			return s.behind
		}
	}
	return ""
}

// follow looks at a hold that seems to be behind until it is over, or seen to be what it should be, or for a while: its other half may
// be on its way.
func (l *looker) follow(ctx context.Context, r nameReport) (nameReport, error) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for range follows {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r, ctx.Err()
		}
		next, err := l.look(ctx, r.Name)
		if err != nil || next.Hold != r.Hold || next.State != r.State {
			r.brief = true
			return r, err
		}
		if next.Behind == "" {
			return next, nil
		}
	}
	return r, nil
}
