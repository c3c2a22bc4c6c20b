package migrate_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
)

// listened is a backend that fails the test if it is used before OnKeepAlive
// was called.
type listened struct {
	*memory.Driver
	t     *testing.T
	knows bool
}

func (l *listened) OnKeepAlive(f func(error)) {
	if l.knows {
		l.t.Error("OnKeepAlive was called twice")
	}
	l.knows = true
	l.Driver.OnKeepAlive(f)
}

func (l *listened) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if !l.knows {
		l.t.Errorf("Acquire of %q before OnKeepAlive", r.Name)
	}
	return l.Driver.Acquire(ctx, r)
}

// Before a Client uses the driver, Open tries locks on both backends. With a
// gate, Open also acquires a membership.
func TestBackendsReportFromTheStart(t *testing.T) {
	driver.Register("listened", func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		return &listened{Driver: memory.New(&memory.Options{KeepsAlive: true}), t: t}, c.URL.Err()
	})
	for _, more := range []string{"&phase=dual", "&phase=dual&gate=true&fenced=false"} {
		c, err := dsync.Open(t.Context(), "migrate:?from=listened://a&to=listened://b"+more, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestPhasesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		for _, c := range []*client{p.client(migrate.PhaseDual), p.gated(migrate.PhaseDual)} {
			var got []string
			c.OnPhase(func(phase string) { got = append(got, phase) })
			for _, phase := range []migrate.Phase{migrate.PhaseDual, migrate.PhaseNew, migrate.PhaseNew, migrate.PhaseDual} {
				setPhase(t, c, phase)
			}
			if want := []string{"dual", "new", "dual"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// TestAGoodReportHidesNoBadOne checks that success is only reported if both
// backends report it.
func TestAGoodReportHidesNoBadOne(t *testing.T) {
	from, to := &reports{Driver: memory.New(sessions)}, &reports{Driver: memory.New(sessions)}
	d, err := migrate.New(from, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []error
	d.OnKeepAlive(func(err error) { got = append(got, err) })
	bad := errors.New("no answer")
	for i, step := range []struct {
		by   *reports
		says error
		want []error // all reports so far
	}{
		{from, bad, []error{bad}},
		{to, nil, []error{bad}},
		{to, bad, []error{bad, bad}},
		{from, nil, []error{bad, bad}},
		{to, nil, []error{bad, bad, nil}},
		{from, nil, []error{bad, bad, nil, nil}},
	} {
		step.by.told(step.says)
		if !slices.EqualFunc(got, step.want, func(got, want error) bool { return errors.Is(got, want) }) {
			t.Fatalf("report %d: got %v, want %v", i, got, step.want)
		}
	}
}

// reports is a backend whose reports the test makes.
type reports struct {
	*memory.Driver
	told func(error)
}

func (r *reports) OnKeepAlive(f func(error)) { r.told = f }
