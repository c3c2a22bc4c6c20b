package conformance

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// goroutineID returns the number of the calling goroutine, as it appears in
// stack dumps.
func goroutineID() string {
	var buf [64]byte
	n := runtime.Stack(buf[:], false)
	id, _, _ := strings.Cut(strings.TrimPrefix(string(buf[:n]), "goroutine "), " ")
	return id
}

// stacks returns the stacks of the goroutines for whose header meant returns
// true.
func stacks(meant func(header string) bool) string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var found []string
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		header, _, _ := bytes.Cut(stack, []byte("\n"))
		if meant(string(header)) {
			found = append(found, string(stack))
		}
	}
	return strings.Join(found, "\n\n")
}

// stackOf returns the stack of the goroutine with the given number.
func stackOf(id string) string {
	return stacks(func(header string) bool { return strings.HasPrefix(header, "goroutine "+id+" ") })
}

// leftBehind converts the panic by which a bubble reports leftover goroutines
// to an error. It does not recover other panics.
func leftBehind(p any) error {
	if !strings.HasPrefix(fmt.Sprint(p), "deadlock:") {
		panic(p)
	}
	return fmt.Errorf("goroutines are left after all clients were closed:\n%s", stacks(func(header string) bool {
		return strings.Contains(header, "synctest bubble")
	}))
}

// checkLabel is the profiler label of a check's goroutines. A goroutine
// inherits the labels of its starter.
const checkLabel = "dsync.check"

// goroutines returns the number of goroutines of the check while others may
// run. In fake time it counts all goroutines in the bubble. Otherwise it counts
// all goroutines with the check's label. Goroutines started by timers lack this
// label.
func (e *env) goroutines() int {
	if !e.fakeTime {
		return labelled(checkLabel, e.id)
	}
	var own [256]byte
	header, _, _ := bytes.Cut(own[:runtime.Stack(own[:], false)], []byte("\n"))
	_, bubble, _ := bytes.Cut(header, []byte("synctest bubble "))
	buf := make([]byte, 8<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], append([]byte("synctest bubble "), bubble...))
}

// labelled counts the goroutines with a profiler label.
func labelled(name, value string) (n int) {
	var groups bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&groups, 1) // to memory
	label := fmt.Appendf(nil, "%q:%q", name, value)
	of := 0 // number of goroutines in the current group, with which its first line begins
	for line := range bytes.Lines(groups.Bytes()) {
		switch {
		case bytes.HasPrefix(line, []byte("# labels: ")) && bytes.Contains(line, label):
			n += of
		case len(line) > 0 && '0' <= line[0] && line[0] <= '9':
			count, _, _ := bytes.Cut(line, []byte(" "))
			of, _ = strconv.Atoi(string(count))
		}
	}
	return n
}

// bubbleFor is the real time that a check in fake time may take. Such a check
// never waits in real time and needs only a second or two.
const bubbleFor = 3 * time.Minute

// runInBubble runs a check in a bubble of testing/synctest. If the check leaves
// goroutines behind, the result is an error, and the process continues. If a
// bubble hangs in real time, because a goroutine waits for a mutex or never
// stops running, runInBubble abandons the bubble.
func runInBubble(t *testing.T, run func(tb testing.TB) result) result {
	return runInBubbleFor(t, bubbleFor, run)
}

func runInBubbleFor(t *testing.T, limit time.Duration, run func(tb testing.TB) result) result {
	var r result
	ended := make(chan error, 1)
	go func() { // ends when the bubble ends
		var err error
		// also when the goroutine exits, because the test in the bubble has
		// failed
		defer func() { ended <- err }()
		err = inBubble(t, func(t *testing.T) { r = run(t) })
	}()
	hangs := time.NewTimer(limit)
	defer hangs.Stop()
	select {
	case err := <-ended:
		if err != nil && r.err == nil {
			r = result{err: err, events: r.events}
		}
		return r
	case <-hangs.C:
		return result{err: fmt.Errorf("still not done after %v in real time, during which fake time may have stood still: "+
			"a goroutine waits for something that synctest does not know, such as a mutex, or never ends. Goroutines in bubbles:\n%s",
			limit, stacks(func(header string) bool {
				return strings.Contains(header, "synctest bubble") && !strings.Contains(header, "durable")
			}))}
	}
}

// inBubble runs f in a bubble.
func inBubble(t *testing.T, f func(t *testing.T)) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = leftBehind(p)
		}
	}()
	synctest.Test(t, f)
	return nil
}

const thisProcess = "this process"

// stalls detects when this process, the server or the network between them
// stands still. If a lease runs out during a standstill, or a waiter's session
// ends, this is not a fault of the driver. A nil *stalls detects nothing. It is
// used in fake time, in which nothing stands still.
type stalls struct {
	ttl    time.Duration // the TTL of leases whose end a check waits for
	cancel context.CancelFunc
	work   sync.WaitGroup
	of     []*standstill
	way    *standstill // of answers to renewals and releases
}

// standstill records how long one party stood still.
type standstill struct {
	who string

	mu     sync.Mutex
	off    bool // a check stops the server on purpose
	recent []stall
	worst  time.Duration // the longest standstill within one TTL
	when   time.Time     // the time of the worst standstill
	total  time.Duration
}

type stall struct {
	began time.Time
	took  time.Duration
}

// watchStalls periodically checks whether this process still runs, and whether
// ping, unless it is nil, returns soon.
func watchStalls(ttl time.Duration, ping func(context.Context) error) *stalls {
	ctx, cancel := context.WithCancel(context.Background())
	way := &standstill{who: "the connection to the server"}
	s := &stalls{ttl: ttl, cancel: cancel, of: []*standstill{way}, way: way}
	watch := func(who string, usual time.Duration, act func() error) {
		one := &standstill{who: who}
		s.of = append(s.of, one)
		s.work.Go(func() { // ends when ctx ends
			for ctx.Err() == nil {
				began := time.Now()
				if err := act(); err == nil {
					one.add(ttl, stall{began, time.Since(began) - usual})
				}
			}
		})
	}
	tick := max(ttl/100, time.Millisecond)
	watch(thisProcess, 2*tick, func() error {
		time.Sleep(tick)
		return nil
	})
	if ping != nil {
		pause := max(ttl/20, time.Millisecond) // a Ping may make a new connection each time
		watch("the server", 2*pause, func() error {
			time.Sleep(pause)
			return ping(ctx)
		})
	}
	return s
}

// add records next if it is a stall.
func (o *standstill) add(ttl time.Duration, next stall) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if next.took <= 0 || o.off {
		return
	}
	o.recent = append(o.recent, next)
	o.total += next.took
	var sum time.Duration
	kept := o.recent[:0]
	for _, one := range o.recent {
		if next.began.Sub(one.began) < ttl {
			kept = append(kept, one)
			sum += one.took
		}
	}
	o.recent = kept
	if sum > o.worst {
		o.worst, o.when = sum, next.began
	}
}

// onPurpose is called before the check stops the server.
func (s *stalls) onPurpose() {
	if s == nil {
		return
	}
	for _, o := range s.of {
		if o.who != thisProcess {
			o.disable()
		}
	}
}

// disturbed is called before the check disturbs the connection to the server.
func (s *stalls) disturbed() {
	if s != nil {
		s.way.disable()
	}
}

func (o *standstill) disable() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.off = true
}

// answered is called with the outcome of a Renew, Release or Leave that began
// at the given time.
func (s *stalls) answered(began time.Time, err error) {
	if s != nil && isNoAnswer(err) {
		s.way.add(s.ttl, stall{began, time.Since(began)})
	}
}

// explain describes a standstill that may have caused a failure. Such a
// standstill lasts at least a quarter of the TTL, or a quarter of hung, the
// bound after which a step counts as a hang. If there was none, explain returns
// "".
func (s *stalls) explain(v *events, hung time.Duration) string {
	if s == nil {
		return ""
	}
	for _, o := range s.of {
		o.mu.Lock()
		worst, when, total := o.worst, o.when, o.total
		o.mu.Unlock()
		switch {
		case hung > 0 && total >= hung/4:
			return fmt.Sprintf("%s stood still for %v in all", o.who, total.Round(time.Millisecond))
		case hung == 0 && worst >= s.ttl/4:
			return fmt.Sprintf("%s stood still for %v within %v, at %s",
				o.who, worst.Round(time.Millisecond), s.ttl, v.at(when))
		}
	}
	return ""
}

func (s *stalls) close() {
	if s != nil {
		s.cancel()
		s.work.Wait()
	}
}
