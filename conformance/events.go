package conformance

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// events is what the clients of a check did, to be shown if it fails.
type events struct {
	start time.Time

	mu      sync.Mutex
	first   []string // the beginning, up to keepEvents
	last    []string // of the rest a ring of the last ones
	n       int
	changed chan struct{} // closed, and replaced, with each event
}

// keepEvents is how many events are kept of the beginning, and of the end.
const keepEvents = 100

func newEvents() *events { return &events{start: time.Now(), changed: make(chan struct{})} }

// add records that something happened now.
func (v *events) add(who, format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	line := fmt.Sprintf("%12.6f  %-8s %s", time.Since(v.start).Seconds(), who, fmt.Sprintf(format, args...))
	switch {
	case len(v.first) < keepEvents:
		v.first = append(v.first, line)
	case len(v.last) < keepEvents:
		v.last = append(v.last, line)
	default:
		v.last[v.n%keepEvents] = line
	}
	v.n++
	v.notify()
}

// wake has waits for events look again.
func (v *events) wake() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notify()
}

// notify is called with mu held.
func (v *events) notify() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// next returns a channel that is closed by the next event, or wake.
func (v *events) next() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// latest returns the last event, or "".
func (v *events) latest() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := v.last
	switch {
	case len(lines) == keepEvents:
		return lines[(v.n+keepEvents-1)%keepEvents]
	case len(lines) == 0:
		lines = v.first
	}
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// at formats a time as the events have it.
func (v *events) at(t time.Time) string { return fmt.Sprintf("%.6f", t.Sub(v.start).Seconds()) }

// String returns the events, one on a line, with the time in seconds since the beginning of the check.
func (v *events) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := append([]string(nil), v.first...)
	if left := v.n - len(v.first) - len(v.last); left > 0 {
		lines = append(lines, fmt.Sprintf("%12s  (%d more)", "", left))
	}
	oldest := 0
	if len(v.last) == keepEvents {
		oldest = v.n % keepEvents
	}
	lines = append(append(lines, v.last[oldest:]...), v.last[:oldest]...)
	return strings.Join(lines, "\n")
}
