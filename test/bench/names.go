package bench

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// namer tells what stays in its process after it has taken locks of many names.
func namer(w *worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	l, err := w.open(ctx)
	if err != nil {
		return err
	}
	if err := eachOf(holderGoroutines, func(i int) error { return pairOnce(ctx, l, "warm"+strconv.Itoa(i)) }); err != nil {
		return err
	}
	w.say(answer{})
	var h hold
	if more, err := w.told(&h); err != nil || !more {
		return err
	}
	s, err := takeNames(ctx, l, w.N, 0)
	if err != nil {
		return err
	}
	w.say(answer{Sample: s})
	if more, err := w.told(&h); err != nil || !more {
		return err
	}
	return l.Close()
}

// takeNames takes a lock of each of n names and gives it back, spread over some time, or with many at a time if that is 0.
func takeNames(ctx context.Context, l Locker, n int, over time.Duration) (Sample, error) {
	if err := pairOnce(ctx, l, "warm"); err != nil {
		return nil, err
	}
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	take := func(i int) error { return pairOnce(ctx, l, "name"+strconv.Itoa(i)) }
	if over == 0 {
		if err := eachOf(n, take); err != nil {
			return nil, err
		}
		if err := settle(ctx); err != nil {
			return nil, err
		}
	}
	for i := 0; over > 0 && i < n; i++ {
		time.Sleep(over / time.Duration(n)) // of fake time
		if err := take(i); err != nil {
			return nil, err
		}
	}
	return Sample{"client B": float64(max(0, heapInUse()-heap)), "goroutines": float64(max(0, runtime.NumGoroutine()-goroutines))}, nil
}

// splitUser parts an address from what stands before its host.
func splitUser(addr string) (user, host string) {
	i := strings.LastIndex(addr, "@") + 1
	return addr[:i], addr[i:]
}
