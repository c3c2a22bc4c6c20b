package telemetry

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// traceMark precedes the trace context of the holder in the note of a lock. The
// trace context has the form of the W3C's traceparent header.
const traceMark = "traceparent="

func appendTrace(note string, s trace.SpanContext) string {
	if note != "" {
		note += " "
	}
	return note + traceMark + "00-" + s.TraceID().String() + "-" + s.SpanID().String() + "-" + s.TraceFlags().String()
}

// traceIn returns the trace context in a note, or an invalid one.
func traceIn(note string) trace.SpanContext {
	i := strings.LastIndex(note, traceMark)
	if i < 0 {
		return trace.SpanContext{}
	}
	fields := strings.Split(note[i+len(traceMark):], "-")
	if len(fields) != 4 || fields[0] != "00" {
		return trace.SpanContext{}
	}
	id, err1 := trace.TraceIDFromHex(fields[1])
	span, err2 := trace.SpanIDFromHex(fields[2])
	if err1 != nil || err2 != nil {
		return trace.SpanContext{}
	}
	config := trace.SpanContextConfig{TraceID: id, SpanID: span, Remote: true}
	if fields[3] == "01" {
		config.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(config)
}

// The time until a waiting call first queries the holder of the lock, the time
// that a query may take, and the number of concurrent queries.
const (
	lookAfter   = 10 * time.Millisecond
	lookFor     = time.Second
	maxInspects = 16
)

// inspects bounds the queries to the backend for holders of locks. On a backend
// that does not store the notes of holders, queries become ever rarer.
type inspects struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running int
	misses  int // consecutive answers without a trace
	pass    int // number of queries to skip
}

// begin reports whether a query may be sent. end ends it.
func (i *inspects) begin() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || i.running == maxInspects {
		return false
	}
	if i.pass > 0 {
		i.pass--
		return false
	}
	i.running++
	i.wg.Add(1)
	return true
}

func (i *inspects) end(found bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running--
	if i.misses = min(i.misses+1, 10); found {
		i.misses = 0
	}
	i.pass = 1<<i.misses - 1
	i.wg.Done()
}

func (i *inspects) close() {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.wg.Wait()
}

// Held is a lock of the client for which a Call is waiting.
type Held interface {
	// Holder returns the Call of the client's hold of the lock, if the hold is
	// observed, and whether the client has a hold.
	Holder() (of *Call, ours bool)
}

// lookAt queries the backend for the holder of the lock, and repeats the query
// each time the call has waited twice as long. So it does not miss a hold that
// takes more than half of the wait, and the number of queries grows with the
// logarithm of the wait. lookAt does not delay the call, which may end before
// the answer.
func (c *Call) lookAt(held Held) {
	of, ours := held.Holder()
	holder := of.traced()
	if !ours {
		holder = c.telemetry.inspect(c.lock.Name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.blockedBy(holder)
		c.look.Reset(time.Since(c.waiting))
	}
}

// inspect queries the backend for the holder of a lock.
func (t *Telemetry) inspect(name string) trace.SpanContext {
	if t.config.Inspect == nil || !t.inspects.begin() {
		return trace.SpanContext{}
	}
	ctx, cancel := context.WithTimeout(t.config.Life, lookFor)
	defer cancel()
	status, err := t.config.Inspect(ctx, name)
	holder := traceIn(status.Note)
	t.inspects.end(err != nil || !status.Held || holder.IsValid())
	return holder
}
