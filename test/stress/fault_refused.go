package stress

import (
	"github.com/go-dsync/dsync/conformance/wire"

	"time"
)

// refusal makes servers refuse some requests. begin returns a function that
// ends the refusals.
type refusal struct {
	name  string
	begin func(c *cell) (end func())
}

// refuseCommands makes servers refuse one kind of request after the other,
// usually for less than the TTL.
func refuseCommands(c *cell, _ int) {
	before := c.bed.refused()
	for n := 0; n < 5 || n < 50 && c.bed.refused() == before; n++ {
		r := c.bed.refusals[c.random.IntN(len(c.bed.refusals))]
		c.own.Note("refused: " + r.name)
		end := r.begin(c)
		if c.random.IntN(8) == 0 {
			c.sleep(c.outlasts())
		} else {
			c.sleep(20*time.Millisecond + c.upTo(400*time.Millisecond))
		}
		end()
		c.sleep(c.upTo(200 * time.Millisecond))
	}
	c.require(func() bool { return c.bed.refused() > before }, "the servers refused nothing")
}

// halfOpen makes a process lose its open connections without notice. New
// connections work.
func halfOpen(c *cell, _ int) {
	w := c.linked()
	before := w.dropped()
	c.require(func() bool {
		w.each((*wire.Wire).Strand) // including a connection that is being established
		return w.dropped() > before
	}, "%s sent nothing over its silent connections", w.label)
}

// moveAddress makes another server take over an address. Open connections stay
// with the old server.
func moveAddress(c *cell, _ int) {
	i := c.random.IntN(len(c.bed.nodes))
	next, after := c.bed.takeOver(c, i)
	for _, w := range c.workers {
		w.links[i].Redirect(address(c.bed.nodes[i]), next)
	}
	after()
}
