package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

var longFleet = flag.Bool("fleet", false, "run TestFleetOfSix, which takes minutes")

// clerk is a process that locks names, as a program with a URL does.
type clerk struct {
	Label, URL, History string
	Names               []string
	Seed                uint64
	Work                time.Duration // at most, under a lock
}

const clerkVariable = "DSYNC_TEST_CLERK"

// clerkMain is a clerk, until its standard input ends.
func clerkMain() {
	var c clerk
	err := json.Unmarshal([]byte(os.Getenv(clerkVariable)), &c)
	if err == nil {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { // ends with the standard input
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		err = c.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, c.Label+":", err)
		os.Exit(1)
	}
}

func (c *clerk) run(ctx context.Context) error {
	h, err := history.Create(c.History, c.Label)
	if err != nil {
		return err
	}
	client, err := c.open(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var work sync.WaitGroup
	for i := range uint64(2) {
		random := rand.New(rand.NewPCG(c.Seed, i))
		work.Go(func() {
			for ctx.Err() == nil {
				c.lock(ctx, client, h, random)
			}
		})
	}
	work.Wait()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), fleetPatience)
	defer cancel()
	_ = client.Close(bound) // a backend may be down at that moment: then what is left ends by itself
	return h.Close()
}

// open opens the client, as whoever supervises it would: again and again.
func (c *clerk) open(ctx context.Context) (*dsync.Client, error) {
	bound, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	for {
		client, err := dsync.Open(bound, c.URL, &dsync.Options{TTL: runbookTTL})
		if err == nil || bound.Err() != nil {
			return client, err
		}
		pause(bound, 200*time.Millisecond)
	}
}

func (c *clerk) lock(ctx context.Context, client *dsync.Client, h *history.History, random *rand.Rand) {
	bound, cancel := context.WithTimeout(ctx, runbookTTL)
	defer cancel()
	a := history.Attempt{Client: c.Label, Name: c.Names[random.IntN(len(c.Names))]}
	op := h.Begin(a)
	l, err := client.Lock(bound, a.Name)
	if op.Returned(l, err); err != nil {
		pause(ctx, 20*time.Millisecond)
		return
	}
	select {
	case <-l.Done():
		op.Lost()
	case <-time.After(rand.N(c.Work)):
	}
	_ = op.Check()
	op.Released(l.Unlock(op.Releasing(context.Background())))
	pause(ctx, time.Duration(random.IntN(10))*time.Millisecond)
}

const (
	fleetSize     = 6 // one of them knows the old backend alone
	fleetPatience = time.Minute
	fleetTries    = 20 // of a command whose backends are killed meanwhile
	frozenClerk   = 2
)

// server is a backend that can be killed and started again, with what it has acknowledged.
type server interface{ Restart() }

// six is a fleet of processes under faults.
type six struct {
	*fleet
	old, now server
	redis    *testenv.RedisServer // the old one
	own      *history.History
	files    []string
	plain    string // the URL of the old backend alone
	thawed   func() // of the one that is frozen
	clerks   map[*program]*testenv.Process
	cut      bool // the old backend has forgotten a user, which would come back with a restart
}

func (s *six) file(label string) string {
	path := filepath.Join(s.t.TempDir(), label)
	s.files = append(s.files, path)
	return path
}

// spawn is fleet.launch.
func (s *six) spawn(raw string) *program {
	s.t.Helper()
	label := fmt.Sprintf("clerk-%d", len(s.files))
	c := clerk{label, raw, s.file(label), s.all, uint64(len(s.files)), 5 * time.Millisecond}
	if raw == s.plain {
		c.Work *= 10 // so that status has something to see
	}
	text, err := json.Marshal(c)
	if err != nil {
		s.t.Fatal(err)
	}
	process := testenv.Spawn(s.t, "clerk", clerkVariable+"="+string(text))
	if line := process.Line(); line != "ready" {
		s.t.Fatalf("%s said %q", label, line)
	}
	p := &program{done: make(chan struct{})}
	p.stop = func() {
		go func() { // ends with the process
			defer close(p.done)
			if err := process.Wait(); err != nil {
				s.t.Errorf("%s: %v", label, err)
			}
		}()
	}
	s.clerks[p] = process
	return p
}

// trouble kills either backend once, while f goes on.
func (s *six) trouble(f func()) {
	var faults sync.WaitGroup
	faults.Go(func() {
		pause(s.t.Context(), 300*time.Millisecond)
		if !s.cut {
			off := s.own.Fault("restart", "the old backend")
			s.old.Restart()
			off()
			pause(s.t.Context(), time.Second)
		}
		off := s.own.Fault("restart", "the new backend")
		s.now.Restart()
		off()
	})
	f()
	faults.Wait()
	pause(s.t.Context(), time.Second)
}

// cutOff ends what a user of the old backend may do.
func (s *six) cutOff(user string) {
	s.redis.Do("ACL", "SETUSER", user, "off")
	s.redis.Do("CLIENT", "KILL", "USER", user)
	s.cut = true
}

// tooLate starts a program with an old configuration.
func (s *six) tooLate(raw string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Second)
	defer cancel()
	c, err := dsync.Open(ctx, raw, &dsync.Options{TTL: runbookTTL})
	if err == nil {
		_, err = c.Lock(ctx, s.all[0])
		_ = c.Close(s.t.Context())
	}
	if err == nil {
		s.t.Errorf("a program with an old configuration got a lock at the very end")
	}
}

// TestFleetOfSix goes by the runbook from the plain URL of the old backend to that of the new one, with six processes under load: one of them
// knows the old backend alone, one is frozen through two steps, and one is started with the old configuration at the very end. Either
// backend is killed once in each step, and one name is locked by nobody meanwhile.
func TestFleetOfSix(t *testing.T) {
	if !*longFleet {
		t.Skip("left to make migration-long")
	}
	kept := []string{"--appendonly", "yes", "--appendfsync", "always"}
	for _, test := range []struct {
		name string
		to   func(t *testing.T) (string, server)
	}{
		{"redis to etcd", func(t *testing.T) (string, server) {
			s := testenv.Etcd(t)
			return "etcd://" + s.Addr + "/locks/", s
		}},
		{"single to cluster", func(t *testing.T) (string, server) {
			c := testenv.RedisCluster(t, 3, 0, kept...)
			return "redisson://" + strings.Join(c.Addrs(), ",") + "?mode=cluster", c.Owner("b")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			args, password := kept, testenv.Password()
			for _, user := range []string{"old", "mover"} {
				args = append(args, "--user", user, "on", ">"+password, "~*", "&*", "+@all")
			}
			redis := testenv.Redis(t, args...)
			to, now := test.to(t)
			s := &six{old: redis, now: now, redis: redis, clerks: map[*program]*testenv.Process{}}
			s.fleet = &fleet{two: &two{t: t, from: "redisson://old:" + password + "@" + redis.Addr, to: to}, launch: s.spawn, tries: fleetTries, tokens: true,
				listed: []string{"a", "b", "c"}, all: []string{"a", "b", "c", "d", "e"}, programs: make([]*program, fleetSize-1),
				inside: map[string]bool{}, last: map[string]uint64{}, fenced: true}
			s.follow(runbookLines(t, "Runbook with seals"))
			s.judge()
		})
	}
}

// idle locks the name that nobody locks meanwhile, and returns its token.
func (s *six) idle(raw string) uint64 {
	s.t.Helper()
	d := drivertest.Open(s.t, raw)
	l := drivertest.Acquire(s.t, d, drivertest.Request("idle"))
	drivertest.Release(s.t, l)
	c, err := dsync.Open(s.t.Context(), raw, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(s.t.Context()))
	lease, err := c.Lock(s.t.Context(), "idle", dsync.WaitAtMost(fleetPatience))
	if err != nil {
		s.t.Fatal(err)
	}
	defer lease.Unlock(s.t.Context())
	return lease.Token()
}

func (s *six) follow(lines []string) {
	file := filepath.Join(s.t.TempDir(), "names.txt")
	err := os.WriteFile(file, []byte(strings.Join(s.listed, "\n")), 0o600)
	if err == nil {
		s.own, err = history.Create(s.file("own"), "own")
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.plain = s.from
	before := s.idle(s.plain)
	s.restart(s.plain)
	s.stranger = s.start(s.plain, s.all)
	s.from = strings.Replace(s.plain, "old:", "mover:", 1) // programs have a user of their own from step 2 on
	said := ""
	for _, text := range lines {
		s.t.Log(text)
		if strings.Contains(text, "stop them") {
			s.seesTheStranger(file)
		}
		if strings.HasPrefix(text, "dsync migrate seal") {
			s.frozen = s.programs[frozenClerk]
			s.thawed = s.own.Fault("stop", "a clerk")
			s.clerks[s.frozen].Stop()
		}
		step := func() { said = s.line(text, said, file) }
		if strings.HasPrefix(text, "dsync ") || strings.Contains(text, "restart all programs") {
			s.trouble(step)
		} else {
			step()
		}
		switch {
		case strings.Contains(text, "cut off whoever"):
			s.cutOff("old")
			pause(s.t.Context(), runbookTTL)
			s.tooLate(s.plain)
		case strings.Contains(text, "phase=new"):
			s.thaw()
		}
		if s.t.Failed() {
			s.t.Fatalf("after the line %q", text)
		}
	}
	s.tooLate(s.plain)
	s.cutOff("mover")
	s.tooLate(s.phase("dual", ""))
	if after := s.idle(s.to); after <= before {
		s.t.Errorf("the name that nobody locked meanwhile: got token %d after %d", after, before)
	}
	for _, p := range s.programs {
		s.end(p)
	}
}

// thaw lets the frozen process go on, in phase dual, beside others in phase new, and then gives it the URL that it has missed.
func (s *six) thaw() {
	p := s.frozen
	s.frozen = nil
	s.clerks[p].Cont()
	s.thawed()
	pause(s.t.Context(), 2*time.Second)
	s.programs[frozenClerk] = s.start(s.phase("new", ""), s.all)
	s.end(p)
}

// seesTheStranger: status names the program that knows the old backend alone, as long as it locks.
func (s *six) seesTheStranger(file string) {
	s.t.Setenv(fromVariable, s.from)
	s.t.Setenv(toVariable, s.to)
	for try := 1; ; try++ {
		r := s.bare("migrate", "status", "--names", file, "--for", "1m")
		if r.status != exitFailed || try == fleetTries { // a backend that was killed may not be back yet
			r.want(exitUnfinished, "knows the old backend alone")
			return
		}
		pause(s.t.Context(), time.Second)
	}
}

// judge reads what all processes were told.
func (s *six) judge() {
	if err := s.own.Close(); err != nil {
		s.t.Fatal(err)
	}
	events, err := history.Read(s.files...)
	if err != nil {
		s.t.Fatal(err)
	}
	v := history.Judge(events, history.Bounds{Fenced: true, MinClients: fleetSize, MinGrants: fleetSize, MaxUnknown: 0.5,
		Linger: runbookTTL + 2*time.Second, Wake: 4 * runbookTTL, Stuck: 4 * runbookTTL, Recover: 2 * runbookTTL})
	s.t.Logf("%d attempts, %d granted, %d lost, %d unknown, %d faults", v.Attempts, v.Granted, v.Lost, v.Unknown, v.Faults)
	if err := v.Err(); err != nil {
		s.t.Error(err)
	}
	if v.Granted < 1000 {
		s.t.Error(errors.New("fewer than 1000 grants"))
	}
}
