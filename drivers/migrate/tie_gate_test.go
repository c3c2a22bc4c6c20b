package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/testenv"
)

// identified keeps no seals, but has an identity.
type identified struct {
	onlyDriverAndAdmin
	server *memory.Server
}

var identities = map[*memory.Server]uint64{}

func (d identified) Identity(context.Context) (uint64, error) {
	if identities[d.server] == 0 {
		identities[d.server] = uint64(len(identities)) + 1
	}
	return identities[d.server], nil
}

// checkedWithAGate is checked with a gate. The new backend keeps seals or is
// identified.
func (p *pair) checkedWithAGate(phase migrate.Phase, seals bool) (*client, error) {
	c := &client{from: p.from.NewDriver(), to: p.to.NewDriver()}
	var to driver.Driver = c.to
	if !seals {
		to = identified{onlyDriverAndAdmin{c.to, c.to}, p.to}
	}
	var err error
	if c.Driver, err = migrate.New(c.from, to, &migrate.Options{Phase: phase, Gated: true, Unfenced: true, TTL: ttl}); err != nil {
		p.t.Fatal(err)
	}
	return c, c.Check(p.t.Context())
}

// TestAnotherNewBackendIsFoundWithAGate also checks swapped backends, if the
// old backend keeps seals.
func TestAnotherNewBackendIsFoundWithAGate(t *testing.T) {
	for _, seals := range []bool{true, false} {
		for _, phase := range gatedPhases {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, nil, nil)
				wrong, swapped := &pair{t, p.from, memory.NewServer(nil)}, &pair{t, p.to, p.from}
				c, err := p.checkedWithAGate(migrate.PhaseDual, seals)
				wantErr(t, "the first process", errors.Join(err, c.Ties(t.Context())), nil)
				_, err = p.checkedWithAGate(phase, seals)
				wantErr(t, "the second process", err, nil)
				other, err := wrong.checkedWithAGate(phase, seals)
				wantErr(t, "a process with another new backend", err, migrate.ErrOtherBackend)
				wantErr(t, "a look with another new backend", other.Look(t.Context()), migrate.ErrOtherBackend)
				if seals {
					_, err = swapped.checkedWithAGate(phase, seals)
					wantErr(t, "a process with from and to swapped", err, migrate.ErrWrongWay)
				}
				if err := c.Untie(t.Context()); err != nil {
					t.Fatal(err)
				}
				_, err = wrong.checkedWithAGate(phase, seals)
				wantErr(t, "another new backend after Untie", err, nil)
				_, err = p.checkedWithAGate(phase, seals)
				wantErr(t, "the first new backend after that", err, migrate.ErrOtherBackend)
			})
		}
	}
}

// slowSealer calls do before one of its seals.
type slowSealer struct {
	*memory.Driver
	seals, at atomic.Int32
	do        func()
}

func (d *slowSealer) Seal(ctx context.Context, l driver.Lease) error {
	if d.seals.Add(1) == d.at.Load() {
		d.do()
	}
	return d.Driver.Seal(ctx, l)
}

// TestATieThatComesTooLate stops the first process until another process, with
// another new backend, has finished.
func TestATieThatComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		from := &slowSealer{Driver: p.from.NewDriver(), do: func() {
			time.Sleep(2 * ttl)
			_, err := (&pair{t, p.from, memory.NewServer(nil)}).checkedWithAGate(migrate.PhaseNew, true)
			wantErr(t, "the second process", err, nil)
		}}
		from.at.Store(3) // the target is sealed after two others
		late, err := migrate.New(from, p.to.NewDriver(), &migrate.Options{Gated: true, Unfenced: true, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "the first process", late.Check(t.Context()), migrate.ErrOtherBackend)
	})
}

// TestANewBackendThatWasRestoredFromEmptyIsAnother checks that such a backend
// is refused until the old one is untied.
func TestANewBackendThatWasRestoredFromEmptyIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c, err := p.checkedWithAGate(migrate.PhaseNew, true)
		wantErr(t, "the first process", err, nil)
		p.to = memory.NewServer(nil)
		_, err = p.checkedWithAGate(migrate.PhaseNew, true)
		wantErr(t, "after the restoration", err, migrate.ErrOtherBackend)
		wantErr(t, "Untie", c.Untie(t.Context()), nil)
		_, err = p.checkedWithAGate(migrate.PhaseNew, true)
		wantErr(t, "after Untie", err, nil)
	})
}

// TestAGateBetweenBackendsThatCannotBeTied checks that Ties returns the reason,
// and that the migration works.
func TestAGateBetweenBackendsThatCannotBeTied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, nil, nil)
		c := p.gated(migrate.PhaseNew)
		wantErr(t, "Ties", c.Ties(t.Context()), errors.ErrUnsupported)
		wantErr(t, "Check", errors.Join(c.Check(t.Context()), c.Look(t.Context())), nil)
		release(t, lock(t, c, "x"))
	})
}

// TestAnotherDatabaseIsFound has a process with another database or another
// prefix in the URL of the new backend.
func TestAnotherDatabaseIsFound(t *testing.T) {
	t.Parallel()
	redis, postgres, etcd := testenv.Redis(t), testenv.Postgres(t), testenv.Etcd(t)
	conn, err := pgx.Connect(t.Context(), postgres.URL("postgres")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE other"); err != nil {
		t.Fatal(err)
	}
	open := func(database int, to string, phase migrate.Phase) error {
		from := fmt.Sprintf("redisson://%s/%d", redis.Addr, database)
		d, _, err := driver.Open(t.Context(), fmt.Sprintf("migrate:?gate=true&fenced=false&phase=%v&from=%s&to=%s",
			phase, url.QueryEscape(from), url.QueryEscape(to)))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
		defer cancel()
		return d.Close(ctx)
	}
	for i, to := range [][2]string{
		{"pglock://postgres@" + postgres.Addr + "/postgres?sslmode=disable", "pglock://postgres@" + postgres.Addr + "/other?sslmode=disable"},
		{"etcd://" + etcd.Addr + "/gate-locks/", "etcd://" + etcd.Addr + "/gate-lock/"},
	} {
		for _, phase := range gatedPhases {
			wantErr(t, fmt.Sprintf("%v with %s", phase, to[0]), open(i, to[0], phase), nil)
			wantErr(t, fmt.Sprintf("%v with %s", phase, to[1]), open(i, to[1], phase), migrate.ErrOtherBackend)
		}
	}
}
