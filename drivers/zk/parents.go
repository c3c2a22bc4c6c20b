package zk

import "sync"

// parents remembers nodes of names.
type parents struct {
	mu    sync.Mutex
	known map[string]parent
}

// parent is what is known of the node of a name.
type parent struct {
	there   bool  // the node was there when last seen, so nobody tries to make the node
	crowded int64 // until then others are likely to wait for the name
}

const maxParents = 4096

// change changes what is known of a parent.
func (p *parents) change(dir string, to func(n parent) parent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := to(p.known[dir])
	if n == (parent{}) {
		delete(p.known, dir)
		return
	}
	if p.known == nil || len(p.known) >= maxParents {
		p.known = make(map[string]parent)
	}
	p.known[dir] = n
}

func (p *parents) has(dir string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[dir].there
}

func (p *parents) add(dir string) {
	p.change(dir, func(n parent) parent { n.there = true; return n })
}

func (p *parents) remove(dir string) {
	p.change(dir, func(n parent) parent { n.there = false; return n })
}

// crowd takes note that others waited for a name, or somebody of this driver for others.
func (p *parents) crowd(dir string, until int64) {
	p.change(dir, func(n parent) parent { n.crowded = until; return n })
}

// isCrowded reports whether others are likely to wait for a name.
func (p *parents) isCrowded(dir string, now int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now < p.known[dir].crowded
}
