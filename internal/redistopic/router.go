package redistopic

import "time"

// router hands the sharded subscriptions of a cluster to the feeds of their
// nodes. It runs from the first subscription on.
type router struct {
	listener *Listener
	kick     chan struct{} // holds a value when todo is not empty

	// Guarded by Listener.mu.
	running     bool
	todo, retry []*subscription
}

// place finds the node for a new subscription (mu).
func (r *router) place(s *subscription) {
	r.todo = append(r.todo, s)
	r.wake()
}

// again finds the node for a subscription that a node refused or dropped, after
// a pause (mu).
func (r *router) again(s *subscription) {
	r.listener.options.Shards.Expire()
	r.later(s)
}

// later places a subscription after a pause (mu).
func (r *router) later(s *subscription) {
	if r.retry = append(r.retry, s); len(r.retry) > 1 {
		return
	}
	time.AfterFunc(placeAgain, func() {
		r.listener.mu.Lock()
		defer r.listener.mu.Unlock()
		r.todo, r.retry = append(r.todo, r.retry...), nil
		r.wake()
	})
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
	for {
		select {
		case <-r.kick:
			r.assign()
		case <-r.listener.options.Life.Context().Done():
			return
		}
	}
}

// assign hands over the subscriptions in todo.
func (r *router) assign() {
	ln := r.listener
	shards := ln.options.Shards
	err := shards.Refresh(ln.options.Life.Context())
	ln.mu.Lock()
	defer ln.mu.Unlock()
	todo := r.todo
	r.todo = nil
	for _, s := range todo {
		channel := s.hub.channel
		if ln.hubs[channel] != s.hub || ln.closed {
			continue
		}
		if node := shards.Node(channel); err == nil && node != "" {
			ln.feed(feedKey{node, true}).add(s)
		} else {
			r.later(s)
		}
	}
}
