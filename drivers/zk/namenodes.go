package zk

import "sync"

// nameNodes remembers the nodes of names: the parents of the nodes of contenders.
type nameNodes struct {
	mu    sync.Mutex
	known map[string]nameNode
}

// nameNode is what is known of the node of a name.
type nameNode struct {
	there   bool  // the node was there when last seen, so nobody tries to make the node
	crowded int64 // until then others are likely to wait for the name
}

const maxNameNodes = 4096

// change changes what is known of the node of a name.
func (ns *nameNodes) change(dir string, to func(n nameNode) nameNode) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := to(ns.known[dir])
	if n == (nameNode{}) {
		delete(ns.known, dir)
		return
	}
	if ns.known == nil || len(ns.known) >= maxNameNodes {
		ns.known = make(map[string]nameNode)
	}
	ns.known[dir] = n
}

func (ns *nameNodes) exists(dir string) bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.known[dir].there
}

func (ns *nameNodes) add(dir string) {
	ns.change(dir, func(n nameNode) nameNode { n.there = true; return n })
}

func (ns *nameNodes) remove(dir string) {
	ns.change(dir, func(n nameNode) nameNode { n.there = false; return n })
}

// crowd takes note that others waited for a name, or somebody of this driver for others.
func (ns *nameNodes) crowd(dir string, until int64) {
	ns.change(dir, func(n nameNode) nameNode { n.crowded = until; return n })
}

// isCrowded reports whether others are likely to wait for a name.
func (ns *nameNodes) isCrowded(dir string, now int64) bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return now < ns.known[dir].crowded
}
