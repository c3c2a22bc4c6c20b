package redistopic

import "time"

// router passes the sharded subscriptions of a cluster to the feeds of their
// nodes. It is guarded by Listener.mu.
type router struct {
	listener    *Listener
	running     bool
	todo, retry []*subscription
}

// place finds the node for subscriptions (mu).
func (r *router) place(some ...*subscription) {
	if r.todo = append(r.todo, some...); !r.running {
		r.running = r.listener.options.Life.Go(r.run)
	}
}

// again finds, after a pause, the node for a subscription that a node refused
// or dropped (mu).
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
		some := r.retry
		r.retry = nil
		r.place(some...)
	})
}

// run hands over the subscriptions in todo.
func (r *router) run() {
	ln := r.listener
	shards := ln.options.Shards
	ln.mu.Lock()
	defer ln.mu.Unlock()
	defer func() { r.running = false }()
	for len(r.todo) > 0 {
		todo := r.todo
		r.todo = nil
		ln.mu.Unlock()
		err := shards.Refresh(ln.options.Life.Context())
		ln.mu.Lock()
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
}
