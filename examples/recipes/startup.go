package recipes

import (
	"context"
	"time"

	"github.com/go-dsync/dsync"
)

// Migrate changes the schema of a database when a program starts. All instances
// call Migrate: the first does the work, and the others wait for it.
func Migrate(ctx context.Context, l dsync.Locker, version func(context.Context) (int, error), steps []func(context.Context) error) error {
	return dsync.Do(ctx, l, "schema", func(ctx context.Context) error {
		done, err := version(ctx) // queried under the lock
		if err != nil {
			return err
		}
		for _, step := range steps[min(done, len(steps)):] {
			if err := step(ctx); err != nil { // each in a transaction that also stores the new version
				return err
			}
		}
		return nil
	}, dsync.WaitAtMost(10*time.Minute))
}
