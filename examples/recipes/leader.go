package recipes

import (
	"context"
	"log/slog"

	"github.com/go-dsync/dsync"
)

// Lead runs serve in only one of the processes that call Lead with the same
// name, until ctx ends. When ctx ends, as at SIGTERM, the lock goes to the next
// process as soon as serve has returned. When the lock is lost, the context of
// serve ends, and Lead waits for its turn again. When serve returns by itself,
// Lead returns its error.
func Lead(ctx context.Context, l dsync.Locker, name string, serve func(context.Context) error) error {
	err := dsync.Elect(ctx, l, name, func(ctx context.Context, term *dsync.Lease) error {
		slog.InfoContext(ctx, "the leader", "term", term.Token())
		return serve(ctx)
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}
