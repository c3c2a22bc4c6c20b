package cli

import (
	"context"

	"github.com/go-dsync/dsync/internal/parallel"
)

// SideBySide calls do with 0 to n-1, at most atOnce calls at a time, and
// returns the first error. After an error or the end of ctx it starts no more
// calls, and cancels the context of the running ones.
func SideBySide(ctx context.Context, atOnce, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parallel.Each(n, atOnce, func(i int) {
		if ctx.Err() != nil {
			return
		}
		if err := do(ctx, i); err != nil {
			cancel(err) // later errors are only consequences
		}
	})
	return context.Cause(ctx)
}
