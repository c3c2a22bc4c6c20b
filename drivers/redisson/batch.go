package redisson

import (
	"strconv"
	"time"
)

// batch has ops that go together, and the memory for their request.
type batch struct {
	ops        []*op
	keys, args []string
}

// terms are what acquires in one request mostly have in common.
type terms struct {
	turn   string // see op
	ttl    time.Duration
	tokens int
	marks  bool
	text   string // about the holder
}

func (d *Driver) termsOf(o *op) terms {
	t := terms{turn: o.turn, ttl: o.request.TTL, tokens: o.tokens, marks: o.marks}
	if t.tokens > 0 {
		t.text = d.holderText(o.request)
	}
	return t
}

// fill makes the request of the batch script: the names, and of all else no more than the script cannot make itself, since each argument costs
// both sides a part of the work. It puts releases before acquires, in ops too.
func (b *batch) fill(d *Driver) {
	releases := 0
	for i, o := range b.ops {
		if o.lease != nil {
			b.ops[i], b.ops[releases] = b.ops[releases], o
			releases++
		}
	}
	for _, o := range b.ops {
		b.keys = append(b.keys, o.request.Name)
	}
	b.args = append(d.wordArgs(b.args), d.lineLabel(), d.tokenKind(), d.releaseMessage(), strconv.Itoa(releases))
	for _, o := range b.ops[:releases] {
		b.args = append(b.args, o.request.Hold)
	}
	for rest := b.ops[releases:]; len(rest) > 0; {
		t, n := d.termsOf(rest[0]), 1
		for n < len(rest) && d.termsOf(rest[n]) == t {
			n++
		}
		tokens, marks := "", ""
		if t.tokens > 0 {
			tokens = strconv.Itoa(t.tokens)
		}
		if t.marks {
			marks = "m"
		}
		b.args = append(b.args, strconv.Itoa(n), t.turn, d.milliseconds(t.ttl), tokens, marks, t.text)
		for _, o := range rest[:n] {
			if b.args = append(b.args, o.request.Hold); t.tokens > 0 {
				b.args = append(b.args, d.tokenKey(o.request.Name))
			}
		}
		rest = rest[n:]
	}
}
