package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// plain is a backend without seals and marks that reports the holder of a lock.
type plain struct {
	driver.Driver
	driver.Inspector
}

// oneWay is a backend that seals but cannot unseal.
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

// planJSON is the output of `plan --json`.
type planJSON struct {
	Possible bool
	Phases   []string
	URLs     map[string]string
	Floor    uint64
	Facts    []factJSON
	Refused  []struct{ Name, Why string }
	Error    string
}

type factJSON struct {
	What, Why string
	OK        bool
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		from, to string
		flags    []string
		status   int
		facts    map[string]bool
	}{
		{"memory://planold", "memory://plannew", nil, cli.ExitDone,
			map[string]bool{"names move by seals": true, "fencing tokens": true, "moved names can be taken back": true,
				"programs with a different new backend are refused": true}},
		{"memory://planold", "memory://plannew", []string{"--gate"}, cli.ExitRefused, map[string]bool{"gate": false}},
		{"memory://planold", "memory://plannew", []string{"--gate", "--fenced=false"}, cli.ExitDone, map[string]bool{"gate": true, "fencing tokens": false,
			"programs with a different new backend are refused": true}},
		{"plain://", "memory://plannew", nil, cli.ExitRefused, map[string]bool{"names move by seals": false, "gate": false}},
		{"plain://", "memory://plannew", []string{"--gate", "--fenced=false"}, cli.ExitDone, map[string]bool{"names move by seals": false, "gate": true,
			"programs with a different new backend are refused": false}},
		{"plain://?fenced=false", "memory://plannew", []string{"--gate"}, cli.ExitDone, map[string]bool{"gate": true, "fencing tokens": false}},
		{"memory://planold", "plain://", nil, cli.ExitRefused, map[string]bool{"names move by seals": false}},
		{"memory://planold", "plain://?fenced=false", nil, cli.ExitRefused, map[string]bool{"fencing tokens": false}},
		{"oneway://planold", "memory://plannew", nil, cli.ExitDone,
			map[string]bool{"names move by seals": true, "moved names can be taken back": false}},
		{"memory://planold", "memory://plannew", []string{"--ttl", "1000000h"}, cli.ExitRefused, map[string]bool{"TTL": false}},
	} {
		p := &two{t: t, from: test.from, to: test.to}
		r := p.run(append([]string{"plan", "--json"}, test.flags...)...).want(test.status)
		var got planJSON
		if err := json.Unmarshal([]byte(r.out), &got); err != nil {
			t.Fatalf("%v in\n%s", err, r.out)
		}
		if got.Possible != (test.status == cli.ExitDone) || len(got.Phases) > 0 != got.Possible {
			t.Errorf("%s: got possible %t, phases %v", r.args, got.Possible, got.Phases)
		}
		facts := map[string]factJSON{}
		for _, f := range got.Facts {
			facts[f.What] = f
		}
		for what, ok := range test.facts {
			if f, there := facts[what]; !there || f.OK != ok || f.Why == "" {
				t.Errorf("%s: got %+v for %q, want %t and a reason", r.args, f, what, ok)
			}
		}
		p.run(append([]string{"plan"}, test.flags...)...).want(test.status, facts["fencing tokens"].Why, "reads, permits or latches")
	}
}

// TestPlanFindsNamesThatABackendRefuses checks names on pairs whose new backend
// refuses some of them.
func TestPlanFindsNamesThatABackendRefuses(t *testing.T) {
	etcd := "etcd://" + testenv.Etcd(t).Addr + "/locks/"
	for _, test := range []struct{ to, bad string }{
		{"redisson://" + strings.Join(testenv.RedisCluster(t, 3, 0).Addrs(), ",") + "?mode=cluster", "a{b"},
		{"redisson://" + testenv.Redis(t).Addr, "{42}"},
	} {
		p := &two{t: t, from: etcd, to: test.to, stdin: "42\n" + test.bad + "\n7\n"}
		plan := func(status int, names ...string) (got planJSON) {
			t.Helper()
			args := append([]string{"plan"}, names...)
			r := p.run(args...).want(status)
			if status == cli.ExitRefused {
				r.want(status, "behind: "+test.bad+": it cannot move", "1 name is refused by a backend")
			}
			if err := json.Unmarshal([]byte(p.run(append(args, "--json")...).want(status).out), &got); err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := plan(cli.ExitDone, "42", "7"); !got.Possible || len(got.Refused) > 0 || len(got.URLs) == 0 {
			t.Errorf("%s: got %+v", test.to, got)
		}
		if got := plan(cli.ExitRefused, "--names", "-"); got.Possible || len(got.Refused) != 1 || got.Refused[0].Name != test.bad || got.Error == "" || len(got.URLs) > 0 {
			t.Errorf("%s: got %+v, want that %q is refused", test.to, got, test.bad)
		}
	}
}

// TestPlanTellsOneFloor checks that each call reports the same floor, and after
// the first program the floor of that program.
func TestPlanTellsOneFloor(t *testing.T) {
	p := inMemory(t).bareURLs()
	plan := func(status int) (r planJSON) {
		t.Helper()
		if err := json.Unmarshal([]byte(p.run("plan", "--json").want(status).out), &r); err != nil {
			t.Fatal(err)
		}
		p.run("plan").want(status, fmt.Sprintf("floor=%d ", r.Floor), "new backend")
		return r
	}
	floor := plan(cli.ExitDone).Floor
	if again := plan(cli.ExitDone).Floor; again != floor || floor == 0 {
		t.Errorf("got the floors %d and %d", floor, again)
	}
	q := *p
	q.to += fmt.Sprintf("?floor=%d", 3*floor)
	q.program(migrate.PhaseDual, "")
	if got := plan(cli.ExitRefused).Floor; got != 3*floor {
		t.Errorf("alongside programs with the floor %d: got %d", 3*floor, got)
	}
	p.to = q.to
	if got := plan(cli.ExitDone).Floor; got != 3*floor {
		t.Errorf("with the floor %d: got %d", 3*floor, got)
	}
	q.to += "1"
	for _, c := range [][]string{{"status", "x"}, {"seal", "x"}, {"rollback", "x"}, {"finalize", "x"}, {"plan"}} {
		q.run(c...).want(cli.ExitRefused, migrate.ErrOtherFloor.Error())
	}
}

// TestPlanTellsTheURLsOfThePrograms checks that the URLs have passwords only on
// request.
func TestPlanTellsTheURLsOfThePrograms(t *testing.T) {
	redis := testenv.Redis(t)
	const secret = testenv.PasswordMark + "%2F%40%25"
	redis.Do("ACL", "SETUSER", "mover", "on", ">"+testenv.PasswordMark+"/@%", "~*", "&*", "+@all")
	p := &two{t: t, from: "redisson://mover:" + secret + "@" + redis.Addr, to: "redisson://mover:" + secret + "@" + testenv.Redis(t).Addr + "/3?require=fenced"}
	p.to = strings.Replace(p.to, "mover:"+secret+"@", "", 1)
	r := p.run("plan").want(cli.ExitDone, "mover%3APASSWORD%40", "floor%3D", "require%3Dfenced", "phase=dual", "phase=new")
	r.not(testenv.PasswordMark)
	var got planJSON
	if err := json.Unmarshal([]byte(p.run("plan", "--json", "--passwords").want(cli.ExitDone).out), &got); err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{got.URLs["dual"], got.URLs["new"], got.URLs["alone"]} {
		d := drivertest.Open(t, raw)
		drivertest.Release(t, drivertest.Acquire(t, d, drivertest.Request("x")))
	}
}

// TestWhatMayNotBeSeenIsNoYes uses a user without rights for the names of the
// migration.
func TestWhatMayNotBeSeenIsNoYes(t *testing.T) {
	s := redisToEtcd(t, 1)
	s.to, _, _ = strings.Cut(s.to, "?")
	s.redis.Do("ACL", "SETUSER", "mover", "resetkeys", "~orders/*", "~dsync_fence:*", "~dsync_moved:{orders/*")
	r := s.run("plan").want(cli.ExitUnfinished, migrate.ErrNotPermitted.Error()).not
	for _, text := range []string{"they rise", " yes  when they open", "yes  name by name"} {
		r(text)
	}
	s.run("status", "orders/0").want(cli.ExitUnfinished, migrate.ErrNotPermitted.Error())
	s.run("finalize", "orders/0").want(cli.ExitUnfinished, migrate.ErrNotPermitted.Error()).not("tokens rise")
	s.run("seal", "orders/0").want(cli.ExitUnfinished, migrate.ErrNotPermitted.Error())
	drivertest.Release(t, drivertest.Acquire(t, s.program(migrate.PhaseDual, ""), drivertest.Request("orders/0")))
}
