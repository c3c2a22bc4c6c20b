package cli

import (
	"context"
	"sync"
)

// SideBySide calls do with 0 to n-1, at most atOnce calls at a time, and
// returns the first error. After an error or the end of ctx it starts no more
// calls, and cancels the context of the running ones.
func SideBySide(ctx context.Context, atOnce, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(atOnce, n) {
		workers.Go(func() { // ends with next
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err) // later errors are only consequences
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}
