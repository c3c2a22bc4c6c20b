//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// team starts nodes, either as processes or as clients in this process.
type team interface {
	// start returns immediately. It calls say with the events of the node.
	start(say func(event)) (member, error)

	String() string
	ways() [3]string // the names of terminate, kill and freeze
}

// member is a node that the demonstration can end.
type member interface {
	terminate() // asks it to end
	kill()      // ends it without notice
	freeze()
	thaw()
	ended() <-chan struct{}
	err() error // after ended
}

// actor is a member with the data that the demonstration keeps about it.
type actor struct {
	member
	name, url string
	leaving   bool // its end is not an error
}

// demo is a team with one leader.
type demo struct {
	team   team
	out    io.Writer
	actors []*actor
	told   chan func() error // calls from the actors, for await to carry out
	closed chan struct{}     // the demonstration has ended

	leader *actor
	term   uint64
	over   map[uint64]string // reasons for the ends of terms
}

func newDemo(t team, out io.Writer) *demo {
	return &demo{team: t, out: out, told: make(chan func() error), closed: make(chan struct{}), over: map[uint64]string{}}
}

// start starts another node and returns when its page is available.
func (d *demo) start(ctx context.Context) error {
	a := &actor{name: fmt.Sprint("node ", len(d.actors)+1)}
	m, err := d.team.start(func(e event) { d.tell(func() error { return d.hear(a, e) }) })
	if err != nil {
		return err
	}
	a.member = m
	d.actors = append(d.actors, a)
	go func() { // ends after the node
		<-m.ended()
		d.tell(func() error {
			if a.leaving {
				return nil
			}
			return fmt.Errorf("%s has ended too early: %w", a.name, m.err())
		})
	}()
	return d.await(ctx, func() bool { return a.url != "" })
}

// tell makes await call f.
func (d *demo) tell(f func() error) {
	select {
	case d.told <- f:
	case <-d.closed:
	}
}

// await handles the events of nodes until its condition is met.
func (d *demo) await(ctx context.Context, until func() bool) error {
	for !until() {
		select {
		case f := <-d.told:
			if err := f(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (d *demo) hear(a *actor, e event) error {
	switch e.Kind {
	case ready:
		a.url = e.URL
		fmt.Fprintf(d.out, "  %s: %s\n", a.name, a.url)
	case elected:
		if e.Term <= d.term {
			return fmt.Errorf("%s leads in term %d, after term %d", a.name, e.Term, d.term)
		}
		d.leader, d.term = a, e.Term
	case over:
		d.over[e.Term] = e.Why
	}
	return nil
}

// run shows three ways in which a leader ends.
func (d *demo) run(ctx context.Context) error {
	fmt.Fprintf(d.out, "%v:\n", d.team)
	for range 3 {
		if err := d.start(ctx); err != nil {
			return err
		}
	}
	if err := d.await(ctx, func() bool { return d.leader != nil }); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s leads, term %d\n", d.leader.name, d.term)
	ways := d.team.ways()
	if err := d.end(ctx, ways[0], member.terminate); err != nil {
		return err
	}
	if err := d.end(ctx, ways[1], member.kill); err != nil {
		return err
	}
	return d.pause(ctx, ways[2])
}

// end ends the leader and starts a node in its place.
func (d *demo) end(ctx context.Context, way string, strike func(member)) error {
	d.leader.leaving = true
	if _, err := d.strike(ctx, way, strike); err != nil {
		return err
	}
	return d.start(ctx)
}

// pause freezes the leader until another node leads, and waits until the old
// leader notices that its term has ended.
func (d *demo) pause(ctx context.Context, way string) error {
	old, term := d.leader, d.term
	took, err := d.strike(ctx, way, member.freeze)
	if err != nil {
		return err
	}
	old.thaw()
	if err := d.await(ctx, func() bool { return d.over[term] != "" }); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "  %s, back after %v, ended term %d: %s\n", old.name, took, term, d.over[term])
	return nil
}

// strike applies an action to the leader. It returns when there is a new
// leader, with the time until then.
func (d *demo) strike(ctx context.Context, way string, strike func(member)) (time.Duration, error) {
	old, start := d.leader, time.Now()
	strike(old)
	if err := d.await(ctx, func() bool { return d.leader != old }); err != nil {
		return 0, err
	}
	took := time.Since(start).Round(100 * time.Microsecond)
	fmt.Fprintf(d.out, "%s %s: %s leads after %v, term %d\n", old.name, way, d.leader.name, took, d.term)
	return took, nil
}

// close ends all nodes and returns when they are gone.
func (d *demo) close() (err error) {
	close(d.closed)
	for _, a := range d.actors {
		a.thaw()
		if !a.leaving {
			a.terminate()
		}
	}
	late := time.After(2 * leaveFor)
	for _, a := range d.actors {
		select {
		case <-a.ended():
		case <-late:
			a.kill()
			<-a.ended()
		}
		if !a.leaving {
			err = errors.Join(err, a.err())
		}
	}
	return err
}
