package etcd

import (
	"context"
	"slices"
	"time"
)

// How many callers of one client put their keys for one name at a time: few while each has to look who is before it, which costs the server
// as much as there are keys of the name. They are soon followed by the queue, and those who come then need not look.
const (
	maxLooking = crowd
	maxBlind   = 64

	gatePatience = time.Second // how long one waits for one's turn while those inside are held up
)

// gate lets callers through to put their keys for one name, in the order in which they come.
type gate struct {
	inside int
	line   []chan struct{} // closed when it is one's turn, which counts as inside
}

// enter waits for a caller's turn to put its key for dir, but not for long. Whoever gets it calls exit when that has been answered. W is
// nil if the feed of dir is not active. If it is, everything wakes w; blind says that w will be told when the key is the first, whoever
// is before it.
func (fs *feeds) enter(ctx context.Context, dir string) (w *waiter, blind bool, err error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	g := fs.gates[dir]
	if g == nil {
		g = new(gate)
		fs.gates[dir] = g
	}
	if len(g.line) == 0 && g.inside < fs.most(dir) {
		g.inside++
	} else if err := fs.queueUp(ctx, dir, g); err != nil {
		return nil, false, err
	}
	f := fs.byDir[dir]
	if f == nil || !f.active {
		return nil, false, nil
	}
	w = f.add()
	w.epoch = f.epoch
	return w, f.leads(), nil
}

// queueUp is called, and returns, with mu held.
func (fs *feeds) queueUp(ctx context.Context, dir string, g *gate) error {
	turn := make(chan struct{})
	g.line = append(g.line, turn)
	fs.mu.Unlock()
	timer := time.NewTimer(gatePatience)
	var err error
	select {
	case <-turn:
	case <-timer.C:
	case <-ctx.Done():
		err = errNotSent
	case <-fs.driver.life.Open().Done():
		err = errNotSent
	}
	timer.Stop()
	fs.mu.Lock()
	if i := slices.Index(g.line, turn); i >= 0 {
		g.line = slices.Delete(g.line, i, i+1)
		g.inside++
	}
	if err != nil {
		fs.pass(dir, g)
	}
	return err
}

// exit ends what enter began.
func (fs *feeds) exit(dir string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.pass(dir, fs.gates[dir])
}

// pass gives a turn on. It is called with mu held.
func (fs *feeds) pass(dir string, g *gate) {
	if g.inside--; g.inside == 0 && len(g.line) == 0 {
		delete(fs.gates, dir)
		return
	}
	fs.callNext(dir)
}

// callNext lets in whoever may come. It is called with mu held.
func (fs *feeds) callNext(dir string) {
	g := fs.gates[dir]
	if g == nil {
		return
	}
	n := min(len(g.line), max(0, fs.most(dir)-g.inside))
	for _, turn := range g.line[:n] {
		g.inside++
		close(turn)
	}
	g.line = slices.Delete(g.line, 0, n)
}

// most is how many may be inside. It is called with mu held.
func (fs *feeds) most(dir string) int {
	if f := fs.byDir[dir]; f != nil && f.leads() {
		return maxBlind
	}
	return maxLooking
}

// leads reports whether whoever puts a key now will be told when it is the first, without a look: the queue is known, and somebody is in
// it. It is called with feeds.mu held.
func (f *feed) leads() bool { return f.queue != nil && f.queue.first != nil }
