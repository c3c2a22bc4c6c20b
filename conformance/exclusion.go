package conformance

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-dsync/dsync"
)

var exclusionChecks = []check{
	{"exclusion/free", "A free name is granted at once, whoever held it before.", free},
	{"exclusion/clients", "While one client holds a name, no other client is granted it, however often it asks.", clientsExclude},
	{"exclusion/requests", "Two requests of one client for one name exclude each other.", requestsExclude},
	{"exclusion/equal-owners", "Two requests with the same Owner exclude each other: only Hold identifies.", equalOwnersExclude},
	{"exclusion/race", "Of many clients that try to take a free name at once, at most one is granted it.", raceOfClients},
	{"exclusion/concurrent-requests", "Of many requests of one client for a free name at once, at most one is granted.", raceOfRequests},
}

func free(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	for range 3 {
		for _, c := range []*client{a, b} {
			c.tryLock(name).unlock()
		}
	}
	return nil
}

func clientsExclude(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	h := a.lock(name)
	for range 20 {
		if err := b.refused(name); err != nil {
			return err
		}
	}
	h.unlock()
	return e.isFree(name)
}

func requestsExclude(e *env) error {
	d, name := e.driver(), e.name()
	h := d.hold(name)
	for range 5 {
		if err := d.refused(name); err != nil {
			return err
		}
	}
	h.release()
	return e.isFree(name)
}

func equalOwnersExclude(e *env) error {
	a, b, name := e.driver(), e.driver(), e.name()
	h := a.hold(name, owner("one"))
	for _, d := range []*rawDriver{a, b} {
		if err := d.refused(name, owner("one")); err != nil {
			return err
		}
	}
	h.release()
	return e.isFree(name)
}

func raceOfClients(e *env) error {
	clients := make([]*client, 16)
	for i := range clients {
		clients[i] = e.client()
	}
	for range 20 {
		name := e.name()
		granted := make([]*holding, len(clients))
		e.together("TryLock", len(clients), func(i int) (err error) {
			granted[i], err = clients[i].try(name)
			if errors.Is(err, dsync.ErrLocked) {
				return nil
			}
			return err
		})
		if err := atMostOne(granted, name); err != nil {
			return err
		}
	}
	return nil
}

// atMostOne unlocks the lease that was granted, or returns an error if there are several.
func atMostOne(granted []*holding, name string) error {
	var winner *holding
	for _, h := range granted {
		switch {
		case h == nil:
		case winner != nil:
			return fmt.Errorf("both %s and %s were granted %q", winner.user.label, h.user.label, name)
		default:
			winner = h
		}
	}
	if winner != nil {
		winner.unlock()
	}
	return nil
}

func raceOfRequests(e *env) error {
	d := e.driver()
	for range 20 {
		name := e.name()
		var granted atomic.Int32
		e.together("Acquire", 16, func(int) error {
			r := d.acquire(name, noWait)
			switch {
			case r.lease != nil && granted.Add(1) > 1:
				return fmt.Errorf("two requests of %s were granted %q", d.label, name)
			case r.lease == nil && !errors.Is(r.err, dsync.ErrLocked):
				return r.err
			}
			return nil
		})
	}
	return nil
}
