package cas

import (
	"context"
	"slices"
)

// Remove removes holds of a name without notifying their holders.
func Remove(ctx context.Context, s Store, o Options, name string, its func(hold string) bool) error {
	return New(s, o).alter(ctx, name, func(v *view) error {
		v.Holds = slices.DeleteFunc(v.Holds, func(c claim) bool { return its(c.Hold) })
		return nil
	})
}
