package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

func TestWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(nil), nil)
		readers, writers := dsync.With(c, dsync.Read()), dsync.With(c.NewOwner(), dsync.Write(), dsync.ExpireAfter(time.Minute))
		mode := func(opts ...dsync.LockOption) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				s, err := c.Inspect(ctx, "x")
				return errors.Join(err, fmt.Errorf("%v %v", s.Mode, time.Until(dsync.LeaseFrom(ctx).Deadline()).Round(time.Second)))
			}
		}
		for _, tt := range []struct {
			err  error
			want string
		}{
			{dsync.Do(t.Context(), readers, "x", mode()), "read 30s"},
			{dsync.TryDo(t.Context(), readers, "x", mode()), "read 30s"},
			{dsync.Do(t.Context(), writers, "x", mode()), "write 59s"},
			{dsync.Do(t.Context(), writers, "x", mode(), dsync.ExpireAfter(time.Hour)), "write 59m24s"},
			{dsync.Do(t.Context(), dsync.With(writers, dsync.ExpireAfter(time.Hour)), "x", mode(), dsync.Read()), "read 59m24s"},
			{dsync.Do(t.Context(), readers, "x", mode(), dsync.Write()), "write 30s"}, // the last mode counts
		} {
			if got := strings.TrimSpace(tt.err.Error()); got != tt.want {
				t.Errorf("held in mode %q, want %q", got, tt.want)
			}
		}

		many, err := dsync.LockAll(t.Context(), readers, "x", "y")
		if err != nil {
			t.Fatal(err)
		}
		mustBeLocked(t, []dsync.Locker{c, writers})
		mustUnlock(t, mustTry(t, readers))
		if err := many.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for _, again := range []dsync.Locker{writers, c, c.NewOwner(), readers} {
			_, err := dsync.LockOn(t.Context(), dsync.Target{Locker: readers, Names: []string{"x"}}, dsync.Target{Locker: again, Names: []string{"y", "x"}})
			if err == nil || !strings.Contains(err.Error(), "twice") {
				t.Errorf("error %v for a name that is passed twice on one client", err)
			}
		}
	})
}
