package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-dsync/dsync/examples/coupon/shop"
)

const (
	buyers  = 100
	coupons = 50
)

var wanted = shop.WithLock(buyers, coupons)

// runbook is the runbook of docs/migration.md, followed while the shop sells.
type runbook struct {
	from, to string
	names    string // the file with the names of all locks
	stopOld  func() // nil if this program must not stop the old backend
	patience time.Duration
	tool     *tool
	staff    *staff
	out      io.Writer
}

// service is the seller that uses only one backend, at first the old backend.
const service = "service"

// programs are the sellers that take part in the migration.
var programs = []string{"program 1", "program 2", "program 3"}

// step is a step of the runbook. Each step sells an equal share of the coupons.
type step struct {
	title string
	take  func(ctx context.Context) error
}

func (r *runbook) steps() []step {
	lock := r.staff.lock
	all := []string{"--names", r.names}
	return []step{
		{"Three programs and a service sell with only the old backend.", func(ctx context.Context) error {
			return r.restart(ctx, r.from, append([]string{service}, programs...)...)
		}},
		{"What is possible, and which floor keeps tokens rising?", func(ctx context.Context) error {
			if err := r.until(ctx, 0, "yes  name by name", "plan"); err != nil {
				return err
			}
			return r.addFloor(ctx)
		}},
		{"The programs are restarted in phase dual.", func(ctx context.Context) error {
			return r.restart(ctx, r.phase("dual"), programs...)
		}},
		{"Which programs use only the old backend?", func(ctx context.Context) error {
			return r.until(ctx, 3, "behind: "+lock, "status", "--for", r.patience.String(), lock)
		}},
		{"The service stops. After that, no program is behind.", func(ctx context.Context) error {
			if err := r.staff.close(service); err != nil {
				return err
			}
			return r.until(ctx, 0, "", append([]string{"status", "--for", "2s"}, all...)...)
		}},
		{"The names move. Then the service comes back with only the new backend.", func(ctx context.Context) error {
			if err := r.until(ctx, 0, "sealed: ", append([]string{"seal", "--all", "--wait", "1m"}, all...)...); err != nil {
				return err
			}
			return r.restart(ctx, r.to, service)
		}},
		{"The programs are restarted in phase new.", func(ctx context.Context) error {
			return r.restart(ctx, r.phase("new"), programs...)
		}},
		{"Is the old backend still needed?", func(ctx context.Context) error {
			return r.until(ctx, 0, "In this order", append([]string{"finalize"}, all...)...)
		}},
		{"No program needs to be cut off, so the programs restart with only the new backend.", func(ctx context.Context) error {
			if err := r.restart(ctx, r.to, programs...); err != nil || r.stopOld == nil {
				return err
			}
			r.stopOld()
			r.say("    the old backend is stopped")
			return nil
		}},
	}
}

// addFloor adds the floor that plan reports to the URL of the new backend.
func (r *runbook) addFloor(ctx context.Context) error {
	status, said, err := r.tool.migrate(ctx, "plan", "--json")
	var plan struct{ Floor uint64 }
	if err == nil {
		err = json.Unmarshal([]byte(said), &plan)
	}
	if err != nil || status != 0 {
		return fmt.Errorf("dsync migrate plan: status %d: %w\n%s", status, err, said)
	}
	if plan.Floor == 0 {
		return nil // there are no tokens
	}
	sign := "?"
	if strings.Contains(r.to, "?") {
		sign = "&"
	}
	r.to += fmt.Sprintf("%sfloor=%d", sign, plan.Floor)
	r.tool.env = append(r.tool.env, "DSYNC_TO="+r.to)
	return nil
}

// phase returns the URL of the migration in a phase.
func (r *runbook) phase(p string) string {
	return "migrate:?from=" + url.QueryEscape(r.from) + "&to=" + url.QueryEscape(r.to) + "&phase=" + p
}

func (r *runbook) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// run performs one step after the other. When all coupons are sold, the
// remaining buyers arrive together.
func (r *runbook) run(ctx context.Context) (sale shop.Sale, err error) {
	steps := r.steps()
	come := 0
	for i, s := range steps {
		r.say("%d. %s", i+1, s.title)
		share := (coupons + i) / len(steps) // the shares add up to the whole
		if err := r.staff.sellDuring(ctx, share, s.take); err != nil {
			return sale, fmt.Errorf("step %d: %w", i+1, err)
		}
		come += share
		r.say("    so far %v, by %s", r.staff.soFar(), strings.Join(r.staff.names(), ", "))
	}
	if err := r.staff.sell(ctx, buyers-come); err != nil {
		return sale, err
	}
	if err := r.staff.close(r.staff.names()...); err != nil {
		return sale, err
	}
	sale.Tally = r.staff.soFar()
	sale.Remaining, err = r.staff.stock.Read()
	return sale, err
}

// restart restarts sellers with a URL, one after the other. Running sellers
// first serve their waiting buyers and end.
func (r *runbook) restart(ctx context.Context, url string, names ...string) error {
	for _, name := range names {
		if slices.Contains(r.staff.names(), name) {
			if err := r.staff.close(name); err != nil {
				return err
			}
		}
		if err := r.staff.start(ctx, name, url); err != nil {
			return err
		}
	}
	return nil
}

// until repeats `dsync migrate` until it ends with the given status and output.
func (r *runbook) until(ctx context.Context, status int, says string, args ...string) error {
	bound, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	for {
		got, said, err := r.tool.migrate(ctx, args...)
		switch {
		case err != nil:
			return fmt.Errorf("dsync migrate %s: %w\n%s", args[0], err, said)
		case got == status && strings.Contains(said, says):
			r.say("    $ dsync migrate %s", strings.Join(args, " "))
			for line := range strings.Lines(said) {
				r.say("    %s", strings.TrimSuffix(line, "\n"))
			}
			return nil
		case bound.Err() != nil || got != 0 && got != 3: // 3 means "not there yet"
			return fmt.Errorf("dsync migrate %s: want status %d and %q, got %d and\n%s", args[0], status, says, got, said)
		}
	}
}
