package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	retryAfter     = time.Millisecond       // of those that poll for want of anything better
	redislockPause = 100 * time.Millisecond // of the example in its README
)

var errLost = errors.New("the lock was not held any more")

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newID returns an identity of 16 digits.
func newID() string {
	return strconv.FormatUint(rand.Uint64()|1<<63, 16)
}

// Until quiet, a process has work left that it does once, some of it when a hold has some age.
const (
	quietAfter = time.Second
	quietFor   = 250 * time.Millisecond
	quietMost  = 16 // times quietFor, for those who are never quiet: less than heldTTL
)

// settle waits until this process uses next to no CPU, or for as long as that may take.
func settle(ctx context.Context) error {
	if err := pause(ctx, quietAfter); err != nil {
		return err
	}
	for range quietMost {
		before := cpuTime()
		if err := pause(ctx, quietFor); err != nil {
			return err
		}
		if cpuTime()-before < quietFor/25 {
			return nil
		}
	}
	return nil
}

// untilIdle waits until no CPU of the machine was busy for more than half of a window, and no longer than a limit: who polls is never quiet, nor
// is a machine that has other work.
func untilIdle(window, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		before := cpuTicks()
		_ = pause(context.Background(), window) // ends by itself
		if idle(before, cpuTicks()) {
			return
		}
	}
}

// ticks is what a CPU has had nothing to do for, and all of its time.
type ticks struct{ idle, all int64 }

// cpuTicks is empty where the system does not tell.
func cpuTicks() []ticks {
	text, _ := os.ReadFile("/proc/stat")
	return parseTicks(string(text))
}

// parseTicks reads the lines that begin with cpu and a number: user, nice, system, idle, wait for a disk, and more.
func parseTicks(stat string) (all []ticks) {
	for line := range strings.Lines(stat) {
		words := strings.Fields(line)
		if len(words) < 6 || len(words[0]) < 4 || !strings.HasPrefix(words[0], "cpu") {
			continue
		}
		var t ticks
		for i, word := range words[1:] {
			n, _ := strconv.ParseInt(word, 10, 64)
			if t.all += n; i == 3 || i == 4 {
				t.idle += n
			}
		}
		all = append(all, t)
	}
	return all
}

// idle reports whether each CPU had nothing to do for half of the time between two readings.
func idle(before, after []ticks) bool {
	if len(before) != len(after) {
		return false
	}
	for i := range before {
		if after[i].idle-before[i].idle < (after[i].all-before[i].all)/2 {
			return false
		}
	}
	return len(before) > 0
}
