package redistopic

import "time"

// router hands the sharded subscriptions of a cluster to the feeds of their nodes. It runs from the first subscription on.
type router struct {
	listener *Listener
	kick     chan struct{} // holds a value when there is something in todo or retry

	// Guarded by Listener.mu.
	running     bool
	todo, retry []*subscription
}

// place finds the node for a new subscription. It is called with Listener.mu held.
func (r *router) place(s *subscription) {
	r.todo = append(r.todo, s)
	r.wake()
}

// again finds the node for a subscription that a node refused or dropped, after a pause. It is called with Listener.mu held.
func (r *router) again(s *subscription) {
	r.listener.options.Shards.Expire()
	r.retry = append(r.retry, s)
	r.wake()
}

func (r *router) wake() {
	if !r.running {
		r.running = true
		r.listener.options.Life.Go(r.run)
	}
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// run ends with the driver.
func (r *router) run() {
	timer := time.NewTimer(placeAgain)
	defer timer.Stop()
	timer.Stop()
	waiting := false
	for {
		select {
		case <-r.kick:
			r.assign(false)
		case <-timer.C:
			waiting = false
			r.assign(true)
		case <-r.listener.options.Life.Context().Done():
			return
		}
		if r.pending() && !waiting {
			waiting = true
			timer.Reset(placeAgain)
		}
	}
}

// assign hands over the new subscriptions, or all.
func (r *router) assign(all bool) {
	ln := r.listener
	shards := ln.options.Shards
	err := shards.Refresh(ln.options.Life.Context())
	ln.mu.Lock()
	defer ln.mu.Unlock()
	todo := r.todo
	r.todo = nil
	if all {
		todo = append(todo, r.retry...)
		r.retry = nil
	}
	for _, s := range todo {
		channel := s.hub.channel
		if ln.hubs[channel] != s.hub || ln.closed {
			continue
		}
		if node := shards.Node(channel); err == nil && node != "" {
			ln.feed(feedKey{node, true}).add(s)
		} else {
			r.retry = append(r.retry, s)
		}
	}
}

func (r *router) pending() bool {
	r.listener.mu.Lock()
	defer r.listener.mu.Unlock()
	return len(r.retry) > 0
}
