package migrate

import (
	"context"
	"time"
)

// These are the gate's own actions. In PhaseOld, a process that is not a member
// takes a slot of kind wantsOld, so that other processes see what it wants. It
// tries again to enter its phase, as often as refusals allow, even if its
// program locks nothing. For PhaseNew, see learn.

// lost is called when a member has lost its slot.
func (g *gate) lost(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m == g.current && m.phase == PhaseOld && g.d.Phase() == PhaseOld {
		g.after(0)
	}
}

// asked is called, with mu held, when the process has tried to enter a phase.
func (g *gate) asked(p Phase, err error) {
	now := g.d.Phase()
	if now != PhaseOld || p == PhaseOld && err == nil {
		g.wishNothing()
	}
	switch {
	case now == PhaseOld && err != nil && !g.acting:
		g.after(0)
	case now == PhaseNew && err == nil && g.d.sealer != nil && !g.over:
		g.after(askWhetherClosed)
	}
}

// after calls act after a pause. It is called with mu held.
func (g *gate) after(pause time.Duration) {
	if g.timer == nil {
		g.timer = time.AfterFunc(pause, func() { g.d.spawn(g.act) })
		return
	}
	g.timer.Reset(pause)
}

func (g *gate) act() {
	ctx, end, err := g.d.closable(g.d.life)
	if err != nil {
		return
	}
	defer end()
	g.mu.Lock()
	busy := g.acting
	g.acting = true
	g.mu.Unlock()
	if busy {
		return
	}
	pause := time.Duration(0)
	switch g.d.Phase() {
	case PhaseOld:
		pause = g.returnToOld(ctx)
	case PhaseNew:
		pause = g.learn(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.acting = false
	if pause > 0 {
		g.after(pause)
	}
}

// returnToOld tries to enter PhaseOld. It returns the delay until the next try;
// 0 means never.
func (g *gate) returnToOld(ctx context.Context) time.Duration {
	g.wishForOld(ctx)
	m, err := g.enter(ctx)
	if err == nil {
		m.leave()
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if pause := time.Until(g.refused.until); g.refused.err != nil && pause > 0 {
		return pause
	}
	return lastPause
}

// wishForOld takes a slot of kind wantsOld, unless the process has one.
func (g *gate) wishForOld(ctx context.Context) {
	g.mu.Lock()
	before := g.wish
	g.mu.Unlock()
	if before != nil && before.live() {
		return
	}
	wish := g.newMember(PhaseOld)
	if wish.takeSlot(ctx, g.d.from, wantsOld) != nil {
		wish.stop()
		return // the next call tries again
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wishNothing() // a lost wish
	g.wish = wish
	if g.d.Phase() != PhaseOld {
		g.wishNothing()
	}
}

// wishNothing releases the slot of kind wantsOld. It is called with mu held.
func (g *gate) wishNothing() {
	if wish := g.wish; wish != nil {
		g.wish = nil
		g.retired[wish] = struct{}{}
		g.d.spawn(wish.retire)
	}
}
