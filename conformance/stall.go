package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// stalls notices when this process, or the server, stands still. A lease that runs out meanwhile, or a waiter whose session ends, is
// no fault of the driver. A nil *stalls notices nothing, as in fake time, where nothing stands still.
type stalls struct {
	ttl    time.Duration // of leases whose end a check waits for
	cancel context.CancelFunc
	work   sync.WaitGroup
	of     []*standstill
}

// standstill is how long one party stood still.
type standstill struct {
	who string

	mu     sync.Mutex
	off    bool // a check stops the server on purpose
	recent []stall
	worst  time.Duration // the most within one TTL
	when   time.Time     // when the worst was
	total  time.Duration
}

type stall struct {
	began time.Time
	took  time.Duration
}

// watchStalls looks every now and then whether this process still runs, and whether ping, unless nil, returns soon.
func watchStalls(ttl time.Duration, ping func(context.Context) error) *stalls {
	ctx, cancel := context.WithCancel(context.Background())
	s := &stalls{ttl: ttl, cancel: cancel}
	watch := func(who string, usual time.Duration, act func() error) {
		one := &standstill{who: who}
		s.of = append(s.of, one)
		s.work.Go(func() { // ends with ctx
			for ctx.Err() == nil {
				began := time.Now()
				if err := act(); err == nil {
					one.add(ttl, stall{began, time.Since(began) - usual})
				}
			}
		})
	}
	tick := max(ttl/100, time.Millisecond)
	watch("this process", 2*tick, func() error {
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

// add takes note of a stall, if next is one.
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
	for _, o := range s.of[1:] {
		o.mu.Lock()
		o.off = true
		o.mu.Unlock()
	}
}

// explain says how a failure may have come of a standstill of a quarter of the TTL, or of the bound by which something counted as a hang.
// It returns "" if there was none.
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
