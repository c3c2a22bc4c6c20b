package recipes

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-dsync/dsync"
)

// Lead runs serve in one of all processes that call Lead with the same name, until ctx ends. When ctx ends, as at SIGTERM, the lock
// goes to the next process as soon as serve has returned. When the lock is lost, the context of serve ends, and Lead waits for its
// turn again.
func Lead(ctx context.Context, l dsync.Locker, name string, serve func(context.Context) error) error {
	for ctx.Err() == nil {
		err := dsync.Do(ctx, l, name, serve)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, dsync.ErrLost):
			slog.WarnContext(ctx, "no longer the leader", "error", err)
		case err != nil:
			return err
		}
		select { // serve may have returned at once
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}
