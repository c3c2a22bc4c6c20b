package interop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

const (
	soakTTL  = 3 * time.Second // of both sides
	soakWait = time.Second     // the longest wait of an attempt
	soakHold = 20 * time.Millisecond
)

// TestSoak has threads and goroutines of two processes each take three locks at random, while processes are frozen and killed. What
// they were told is judged as a whole.
func TestSoak(t *testing.T) {
	for _, kind := range []string{"plain", "fair"} {
		t.Run(kind, func(t *testing.T) { t.Parallel(); soak(t, kind) })
	}
}

// soaking is one run.
type soaking struct {
	kind    string
	server  *testenv.RedisServer
	history *conformance.History
	dir     string
	names   []string
	ended   atomic.Bool
	wg      sync.WaitGroup
	started int
}

func soak(t *testing.T, kind string) {
	s := &soaking{kind: kind, server: testenv.Redis(t), dir: t.TempDir()}
	for range 3 {
		s.names = append(s.names, fresh("soak"))
	}
	var err error
	if s.history, err = conformance.CreateHistory(filepath.Join(s.dir, "java"), "java"); err != nil {
		t.Fatal(err)
	}
	processes := []*testenv.Process{s.startJava(t), s.startJava(t), s.startGo(t), s.startGo(t)}
	for i, p := range processes {
		time.Sleep(time.Second)
		off := s.history.Fault("freeze", strconv.Itoa(i))
		p.Stop()
		time.Sleep(soakTTL + time.Second)
		p.Cont()
		off()
	}
	for _, victim := range []struct {
		process     *testenv.Process
		fault, name string
	}{
		{processes[1], "kill of java", "java2"}, // whose events are recorded here
		{processes[3], conformance.FaultKill, "go2"},
	} {
		off := s.history.Fault(victim.fault, victim.name)
		victim.process.Kill()
		time.Sleep(2 * soakTTL)
		off()
	}
	s.startJava(t)
	time.Sleep(2 * time.Second)
	s.ended.Store(true)
	s.wg.Wait()
	processes[2].Send("end")
	if got := processes[2].Line(); got != "ended" {
		t.Errorf("a Go process says %q", got)
	}
	s.judge(t)
}

func (s *soaking) judge(t *testing.T) {
	if err := s.history.Close(); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	events, err := conformance.ReadHistory(paths...)
	if err != nil {
		t.Fatal(err)
	}
	v := conformance.Judge(events, conformance.Bounds{Linger: soakTTL + time.Second, Stuck: hangGuard, Recover: hangGuard,
		MinGrants: 20, MinClients: 4, MaxUnknown: 0.5})
	t.Logf("%d attempts, %d granted, %d refused, %d unknown; %d released, %d lost; %d faults", v.Attempts, v.Granted, v.Refused, v.Unknown,
		v.Released, v.Lost, v.Faults)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
}

func (s *soaking) url() string {
	url := "redisson://" + s.server.Addr + "?ttl=" + soakTTL.String()
	if s.kind == "fair" {
		url += "&fair=true"
	}
	return url
}

// startJava starts a Java process of two threads.
func (s *soaking) startJava(t *testing.T) *testenv.Process {
	java := startJava(t, agent.New)
	client := java.open(t, "single", []string{s.server.Addr}, soakTTL)
	s.started++
	label := "java" + strconv.Itoa(s.started)
	for i := range 2 {
		s.wg.Go(func() {
			for n := 0; !s.ended.Load() && s.useJava(client, fmt.Sprint(label, ".", i), n); n++ {
			}
		})
	}
	return java.Process
}

// useJava makes a thread take a lock, and reports whether its process is alive.
func (s *soaking) useJava(client *redisson, label string, n int) bool {
	name := s.names[rand.IntN(len(s.names))]
	j := client.thread(label, s.kind, name)
	op := s.history.Begin(conformance.Attempt{Client: label, Name: name})
	claim := javaClaim{time.Now().Add(soakTTL)}
	c := j.begin("tryLockFor", strconv.FormatInt(soakWait.Milliseconds(), 10), "-1")
	<-c.done
	switch {
	case c.err != nil: // the process has ended
		op.Returned(nil, dsync.ErrUnknown)
		return false
	case c.text != "true":
		op.Returned(nil, context.DeadlineExceeded)
		return true
	}
	op.Returned(claim, nil)
	time.Sleep(rand.N(soakHold))
	op.Releasing()
	over := claim.Err()
	c = j.begin("unlock")
	<-c.done
	switch {
	case c.err == nil:
		op.Released(over) // Java may still have held what is no longer claimed
	case strings.HasPrefix(c.err.Error(), "IllegalMonitorStateException"):
		op.Released(dsync.ErrNotHeld)
	default:
		op.Released(dsync.ErrUnknown)
		return false
	}
	return true
}

// javaClaim is a hold of Java's until the watchdog's time from the call on, which is the least that it can last.
type javaClaim struct{ deadline time.Time }

func (javaClaim) Token() uint64         { return 0 }
func (c javaClaim) Deadline() time.Time { return c.deadline }

func (c javaClaim) Err() error {
	if time.Now().After(c.deadline) {
		return dsync.ErrNotHeld
	}
	return nil
}

// startGo starts a Go process of four goroutines.
func (s *soaking) startGo(t *testing.T) *testenv.Process {
	s.started++
	label := "go" + strconv.Itoa(s.started-2)
	p := testenv.Spawn(t, "soak", "SOAK_URL="+s.url(), "SOAK_LABEL="+label, "SOAK_NAMES="+strings.Join(s.names, ","),
		"SOAK_HISTORY="+filepath.Join(s.dir, label))
	if got := p.Line(); got != "started" {
		t.Fatalf("a Go process says %q", got)
	}
	return p
}

func soakRole() {
	label, names := os.Getenv("SOAK_LABEL"), strings.Split(os.Getenv("SOAK_NAMES"), ",")
	history, err1 := conformance.CreateHistory(os.Getenv("SOAK_HISTORY"), label)
	client, err2 := dsync.Open(context.Background(), os.Getenv("SOAK_URL"), nil)
	if err := errors.Join(err1, err2); err != nil {
		panic(err)
	}
	fmt.Println("started")
	var ended atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !ended.Load() {
				useGo(history, client, label, names[rand.IntN(len(names))])
			}
		})
	}
	fmt.Scanln(new(string)) // until the test ends it
	ended.Store(true)
	wg.Wait()
	if err := errors.Join(client.Close(context.Background()), history.Close()); err != nil {
		panic(err)
	}
	fmt.Println("ended")
}

func useGo(history *conformance.History, client *dsync.Client, label, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), soakWait)
	defer cancel()
	op := history.Begin(conformance.Attempt{Client: label, Name: name})
	lease, err := client.Lock(ctx, name)
	if op.Returned(lease, err); err != nil {
		return
	}
	time.Sleep(rand.N(soakHold))
	op.Releasing()
	op.Released(lease.Unlock(context.Background()))
}
