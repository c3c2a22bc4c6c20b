package main

import (
	"context"
	"time"
)

// A name in use, and a client that seems to be behind, get further looks: between two requests of a holder, or of this command, a client can
// seem to be behind, and a client behind may share a name with clients that are not.
const (
	moreLooks   = 20 // at least
	steadyLooks = 3  // in a row that show one hold are enough
	lookEvery   = 50 * time.Millisecond
	idleLooks   = 20 // of a name without a holder; after so many, only one look in so many is made
	enough      = 30 // points against a client with none in its favour

	// Points for one look. A hold that was over at the second look may just have been taken or given back.
	forBrief, forLasting = 1, 10

	followEvery = time.Millisecond
	follows     = 10
)

// doubt is what the looks at a name have shown. Each client is judged for itself.
type doubt struct {
	clients map[string]*sight
	order   []string // in which they were seen
	hold    string   // the last
	steady  int      // how often it was seen in a row
	idle    int      // looks in a row at which nobody held it
	over    bool     // nobody can be behind any more
}

// sight is what the looks have shown of one client of a name. All clients that wait in vain are one.
type sight struct {
	behind string // what the last look showed
	points int
	clear  bool // a look showed a use of the name as it should be
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
	if r.State == stateMoved { // a client behind waits in vain since then
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
		// A hold on the old backend alone, with another holder on the new one, says nothing: the name may have changed hands between the two looks.
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

// verdict says why a client is behind, or nothing.
func (d *doubt) verdict() string {
	for _, c := range d.order {
		if s := d.clients[c]; !s.clear && s.points >= enough {
			return s.behind
		}
	}
	return ""
}

// follow looks at a hold that seems to be behind until the hold is over, or has its other half, or for a while: the other half may be on its
// way.
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
