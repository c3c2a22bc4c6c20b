package main

import (
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	machines    = 3
	clocksApart = 150 * time.Millisecond
)

// attempt is one `dsync run` of a job.
type attempt struct {
	late, began, ended time.Duration // late: from the due time on the machine's own clock to the end of the attempt; began and ended: on the clock of the test
	atLeast            time.Duration
	ran                bool
}

// TestRunOnceInAPeriod runs a job once from the crontabs of three machines
// whose clocks are 150 ms apart. The period is so long that no load delays an
// attempt too much.
func TestRunOnceInAPeriod(t *testing.T) {
	t.Parallel()
	ran, now := 0, time.Now()
	for _, a := range onAllMachines(t, "redisson://"+testenv.Redis(t).Addr, now, now, time.Hour) {
		if a.ran {
			ran++
		}
	}
	if ran != 1 {
		t.Errorf("the job ran %d times", ran)
	}
}

// TestRunOncePerPeriod runs such a job once in each of twenty short periods.
//
// Under any load, two runs are at least --at-least apart. One run per period is
// promised only if all attempts of the period and of the previous one ended in
// time. Otherwise the machine is too busy, and the next period is twice as
// long.
func TestRunOncePerPeriod(t *testing.T) {
	if *trials == 0 {
		t.Skip("left to make run-long")
	}
	t.Parallel()
	url := "redisson://" + testenv.Redis(t).Addr
	period, start := 2*time.Second, time.Now()
	due := period
	var runs []attempt
	for good, wasInTime := 0, false; good < 20 && !t.Failed(); due += period {
		atLeast := period * 6 / 10
		inTime := period - atLeast - (machines-1)*clocksApart - 20*time.Millisecond // allowance for rounding
		ran, isInTime := 0, true
		for _, a := range onAllMachines(t, url, start.Add(due), start, atLeast) {
			isInTime = isInTime && a.late < inTime
			if a.ran {
				ran++
				runs = append(runs, a)
			}
		}
		if isInTime && wasInTime {
			if good++; ran != 1 {
				t.Errorf("the job ran %d times in the period at %v", ran, due)
			}
		}
		if wasInTime = isInTime; !isInTime {
			due, period = time.Since(start), period*2
			t.Logf("an attempt was too late: the next periods last %v", period)
		}
	}
	for i, a := range runs {
		for _, b := range runs[i+1:] {
			if least := min(a.atLeast, b.atLeast); a.ended-b.began < least && b.ended-a.began < least {
				t.Errorf("two runs within %v: at %v and at %v", least, a.began, b.began)
			}
		}
	}
}

// onAllMachines lets each machine try the job at the due time on its own clock.
func onAllMachines(t *testing.T, url string, due, start time.Time, atLeast time.Duration) (attempts [machines]attempt) {
	var all sync.WaitGroup
	for i := range attempts {
		due := due.Add(time.Duration(i) * clocksApart)
		all.Go(func() {
			pause(t.Context(), time.Until(due))
			a := attempt{began: time.Since(start), atLeast: atLeast}
			status, _, errs := testenv.Execute(t, "run", "--url", url, "--try", "--at-least", atLeast.String(), "job", "--", "true")
			a.ended, a.late, a.ran = time.Since(start), time.Since(due), status == cli.ExitDone
			if !a.ran && status != cli.ExitLocked {
				t.Errorf("got status %d: %s", status, errs)
			}
			attempts[i] = a
		})
	}
	all.Wait()
	return attempts
}
