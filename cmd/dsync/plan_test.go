package main

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/memory"
)

// plain is a backend that keeps no seals and no marks, and tells who holds a lock.
type plain struct {
	driver.Driver
	driver.Inspector
}

// oneWay is a backend that seals, and takes nothing back.
type oneWay struct {
	driver.Driver
	driver.Inspector
	move.Sealer
	move.Marker
}

func init() {
	driver.Register("plain", func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		d := memory.New(&memory.Options{NoTokens: !c.Fenced})
		return plain{d, d}, nil
	})
	driver.Register("oneway", func(ctx context.Context, c *driver.Config) (driver.Driver, error) {
		d, _, err := driver.Open(ctx, "memory://"+c.URL.Hosts[0])
		if err != nil {
			return nil, err
		}
		return oneWay{d, d.(driver.Inspector), d.(move.Sealer), d.(move.Marker)}, nil
	})
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		from, to string
		flags    []string
		status   int
		facts    map[string]bool
	}{
		{"memory://planold", "memory://plannew", nil, exitDone,
			map[string]bool{"names move by seals": true, "gate": false, "fencing tokens": true, "moved names can be taken back": true,
				"programs with another new backend are refused": true}},
		{"memory://planold", "memory://plannew", []string{"--gate"}, exitRefused, map[string]bool{"gate": false}},
		{"memory://planold", "memory://plannew", []string{"--gate", "--fenced=false"}, exitDone, map[string]bool{"gate": true, "fencing tokens": false,
			"programs with another new backend are refused": true}},
		{"plain://", "memory://plannew", nil, exitRefused, map[string]bool{"names move by seals": false, "gate": false}},
		{"plain://", "memory://plannew", []string{"--gate", "--fenced=false"}, exitDone, map[string]bool{"names move by seals": false, "gate": true,
			"programs with another new backend are refused": false}},
		{"plain://?fenced=false", "memory://plannew", []string{"--gate"}, exitDone, map[string]bool{"gate": true, "fencing tokens": false}},
		{"memory://planold", "plain://", nil, exitRefused, map[string]bool{"names move by seals": false}},
		{"memory://planold", "plain://?fenced=false", nil, exitRefused, map[string]bool{"fencing tokens": false}},
		{"oneway://planold", "memory://plannew", nil, exitDone,
			map[string]bool{"names move by seals": true, "moved names can be taken back": false}},
		{"memory://planold", "memory://plannew", []string{"--ttl", "1000000h"}, exitRefused, map[string]bool{"TTL": false}},
	} {
		p := &two{t: t, from: test.from, to: test.to}
		r := p.run(append([]string{"plan", "--json"}, test.flags...)...).want(test.status)
		var got planReport
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatalf("%v in\n%s", err, r.out)
		}
		if got.Possible != (test.status == exitDone) || len(got.Phases) > 0 != got.Possible {
			t.Errorf("%s: got possible %t, phases %v", r.args, got.Possible, got.Phases)
		}
		facts := map[string]fact{}
		for _, f := range got.Facts {
			facts[f.What] = f
		}
		for what, ok := range test.facts {
			if f, there := facts[what]; !there || f.OK != ok || f.Why == "" {
				t.Errorf("%s: got %+v for %q, want %t and a reason", r.args, f, what, ok)
			}
		}
		p.run(append([]string{"plan"}, test.flags...)...).want(test.status, facts["gate"].Why, "order of waiters")
	}
}
