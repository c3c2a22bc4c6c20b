package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// candidate is a way to elect a leader among processes.
type candidate struct {
	Library string
	Backend string // one of electors

	// Run is the process of a candidate: it calls ready when it is connected, waits for its election, calls leads as its first instruction as the
	// leader, and resigns when ctx ends, as at SIGTERM. It is nil for recipes of Curator.
	Run func(ctx context.Context, addr string, ready, leads func()) error
}

var candidates = []*candidate{
	{"dsync", "Redis", electByDsync("redisson")},
	{"dsync", "etcd", electByDsync("etcd")},
	{"concurrency.Election", "etcd", electByConcurrency},
	{"dsync", "ZooKeeper", electByDsync("zk")},
	{"LeaderSelector", "ZooKeeper", nil},
	{"LeaderLatch", "ZooKeeper", nil},
	{"dsync", "PostgreSQL", electByDsync("pglock")},
}

// electors start what the candidates of a backend find each other by.
var electors = map[string]func(tb testing.TB) (addr string){
	"Redis":     func(tb testing.TB) string { return testenv.Redis(tb).Addr },
	"etcd":      func(tb testing.TB) string { return testenv.Etcd(tb).Addr },
	"ZooKeeper": func(tb testing.TB) string { return testenv.ZooKeeper(tb).Addr },
	"PostgreSQL": func(tb testing.TB) string {
		return "postgres@" + testenv.Postgres(tb).Addr + "/postgres?sslmode=disable"
	},
}

func electByDsync(scheme string) func(ctx context.Context, addr string, ready, leads func()) error {
	return func(ctx context.Context, addr string, ready, leads func()) error {
		client, err := dsync.Open(ctx, scheme+"://"+addr, nil)
		if err != nil {
			return err
		}
		ready()
		err = dsync.Elect(ctx, client, "leader", func(ctx context.Context, _ *dsync.Lease) error {
			leads()
			<-ctx.Done()
			return ctx.Err()
		})
		return errors.Join(err, client.Close(ctx))
	}
}

func electByConcurrency(ctx context.Context, addr string, ready, leads func()) error {
	client, err := newEtcd([]string{addr})
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := concurrency.NewSession(client)
	if err != nil {
		return err
	}
	defer session.Close()
	election := concurrency.NewElection(session, "election")
	ready()
	if err := election.Campaign(ctx, "candidate"); err != nil {
		return err
	}
	leads()
	<-ctx.Done()
	return election.Resign(context.WithoutCancel(ctx))
}

const (
	candidateVariable = "DSYNC_BENCH_CANDIDATE"
	electorVariable   = "DSYNC_BENCH_ELECTOR"
	javaVariable      = "DSYNC_BENCH_JAVA"
)

func (c *candidate) String() string { return c.Library + " on " + c.Backend }

func candidateRole() {
	name, addr := os.Getenv(candidateVariable), os.Getenv(electorVariable)
	i := slices.IndexFunc(candidates, func(c *candidate) bool { return c.String() == name })
	say := func(text string) func() { return func() { fmt.Println(text) } }
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := candidates[i].Run(ctx, addr, say("ready"), say("leads")); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, name, err)
		os.Exit(1)
	}
}

// javaRole makes the process the Java program.
func javaRole() {
	command := strings.Split(os.Getenv(javaVariable), "\n")
	err := syscall.Exec(command[0], command, os.Environ())
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
