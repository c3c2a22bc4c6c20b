package interop

import (
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

var soakFor = flag.Duration("soak", 40*time.Second, "how long TestSoak lasts")

const (
	soakTTL    = 3 * time.Second // of both sides
	soakCalm   = 2 * time.Second // between faults
	soakFreeze = soakTTL + time.Second
)

// TestSoak makes threads and goroutines of two processes each acquire three
// locks at random, while processes are frozen and killed. The test judges all
// results together. For the fair lock it also judges the order of grants and
// their distribution. It omits the fair lock of versions whose waiters may
// sleep forever when a holder dies.
func TestSoak(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) { t.Parallel(); soak(t, "plain", agent.Versions(agent.New, agent.Old)) })
	t.Run("fair", func(t *testing.T) {
		version := agent.Versions(agent.New)[0]
		if agent.Before(version, agent.AsksAgain) {
			t.Skipf("waiters of Redisson %s may sleep forever", version)
		}
		t.Parallel()
		soak(t, "fair", []string{version})
	})
}

// soaking is one run.
type soaking struct {
	kind    string
	server  *testenv.RedisServer
	history *history.History
	dir     string
	names   []string
	ended   atomic.Bool
	wg      sync.WaitGroup // goroutines that record for the Java threads
	lives   []*life
}

// life is the lifetime of one process.
type life struct {
	label   string
	version string // of Redisson, or ""
	process *testenv.Process
	id      string    // the prefix of its holds
	askers  int       // threads or goroutines
	to      time.Time // zero while it is alive
	killed  bool
	frozen  []span
}

type span struct{ from, to time.Time }

func soak(t *testing.T, kind string, versions []string) {
	s := &soaking{kind: kind, server: testenv.Redis(t), dir: t.TempDir()}
	for range 3 {
		s.names = append(s.names, fresh("soak"))
	}
	var order *arrivals
	var endOrder func()
	if kind == "fair" {
		order, endOrder = watchArrivals(t, s.server, s.names)
	}
	var err error
	if s.history, err = history.Create(filepath.Join(s.dir, "java"), "java"); err != nil {
		t.Fatal(err)
	}
	now := []*life{s.startJava(t, versions[0]), s.startJava(t, versions[len(versions)-1]), s.startGo(t), s.startGo(t)}
	s.disturb(t, now, time.Now().Add(*soakFor))
	s.ended.Store(true)
	s.wg.Wait()
	for _, l := range now {
		if l.version == "" {
			l.process.Send("end")
			if got := l.process.Line(); got != "ended" {
				t.Errorf("a Go process printed %q", got)
			}
		}
		l.to = time.Now()
	}
	s.judge(t)
	s.free(t)
	shares := s.shares(t)
	index := drivertest.Jain(slices.Collect(maps.Values(shares)))
	t.Logf("Jain's index of the shares: %.3f", index)
	if kind == "fair" {
		endOrder()
		s.judgeOrder(t, order)
		if index < 0.95 {
			t.Errorf("Jain's index of the shares: got %.3f, want at least 0.95", index)
		}
	}
}

// disturb freezes and kills processes in turn until end.
func (s *soaking) disturb(t *testing.T, now []*life, end time.Time) {
	for i := 0; ; i++ {
		time.Sleep(soakCalm)
		if time.Until(end) < soakCalm+soakFreeze {
			break
		}
		i := i % len(soakVictims)
		if l := &now[soakVictims[i]]; i%2 == 0 {
			s.freeze(*l)
		} else {
			*l = s.replace(t, *l)
			time.Sleep(*soakFor / 10) // each dead waiter of a fair lock delays the others for 5 s
		}
	}
	time.Sleep(soakCalm)
}

// soakVictims are frozen and killed, in turn.
var soakVictims = []int{0, 1, 2, 3, 1, 0, 3, 2}

func (s *soaking) freeze(l *life) {
	off := s.history.Fault("freeze", l.label)
	frozen := span{from: time.Now()}
	l.process.Stop()
	time.Sleep(soakFreeze)
	l.process.Cont()
	frozen.to = time.Now()
	l.frozen = append(l.frozen, frozen)
	off()
}

// replace kills a process and starts another process in its place.
func (s *soaking) replace(t *testing.T, l *life) *life {
	fault := history.FaultKill
	if l.version != "" {
		fault = "kill of java" // this process records its events
	}
	off := s.history.Fault(fault, l.label)
	defer off()
	l.process.Kill()
	l.killed, l.to = true, time.Now()
	if l.version != "" {
		return s.startJava(t, l.version)
	}
	return s.startGo(t)
}

func (s *soaking) url() string {
	url := "redisson://" + s.server.Addr + "?ttl=" + soakTTL.String()
	if s.kind == "fair" {
		url += "&fair=true&order=fifo" // gives all callers the same share
	}
	return url
}

func (s *soaking) born(l *life) *life {
	l.label = fmt.Sprint(map[bool]string{true: "java", false: "go"}[l.version != ""], len(s.lives)+1)
	s.lives = append(s.lives, l)
	return l
}

// judge looks for a lock with two holders, and for attempts that got stuck.
func (s *soaking) judge(t *testing.T) {
	if err := s.history.Close(); err != nil {
		t.Fatal(err)
	}
	v := history.Judge(s.events(t), history.Bounds{Linger: soakTTL + time.Second, Stuck: hangGuard, Recover: hangGuard,
		MinGrants: 20, MinClients: 4})
	t.Logf("%d attempts, %d granted, %d refused, %d unknown; %d claims compared; %d released, %d lost; %d faults", v.Attempts, v.Granted,
		v.Refused, v.Unknown, v.Claims, v.Released, v.Lost, v.Faults)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
}

func (s *soaking) events(t *testing.T) []history.Event {
	paths, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	events, err := history.Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// free checks that all locks are free soon after all processes have ended.
func (s *soaking) free(t *testing.T) {
	for _, name := range s.names {
		testenv.Eventually(t, func() bool { return s.server.Do("EXISTS", name) == int64(0) }, name+" is free")
	}
}

// judgeOrder checks that no waiter was overtaken in the queue, except waiters
// that were frozen or dead while they waited. The protocol lets other clients
// remove such a waiter when its time has expired.
func (s *soaking) judgeOrder(t *testing.T, order *arrivals) {
	excused, bad := 0, 0
	for _, o := range order.overtaking {
		i := slices.IndexFunc(s.lives, func(l *life) bool { return strings.HasPrefix(o.who.hold, l.id+":") })
		if i >= 0 && s.lives[i].disturbed(o.who.at, o.at) {
			excused++
		} else {
			if bad++; bad == 1 {
				t.Logf("what happened before: %s", strings.Join(o.story, "\n"))
			}
			t.Errorf("overtaken in the queue: %v", o)
		}
	}
	t.Logf("%d grants while other clients waited; %d frozen or dead waiters were overtaken", order.grants, excused)
	if order.grants < 100 {
		t.Errorf("the order of only %d grants was judged", order.grants)
	}
}

// disturbed reports whether the process was frozen or dead at some time between
// from and to.
func (l *life) disturbed(from, to time.Time) bool {
	return l.killed && l.to.Before(to) || slices.ContainsFunc(l.frozen, func(f span) bool { return f.from.Before(to) && f.to.After(from) })
}

// shares returns, for each side, the number of grants that its callers
// received, divided by the number that they would have received with equal
// chances. With equal chances, each grant goes to any caller that was able to
// request the lock at the time. A rate would be misleading: there are twenty
// times as many grants before the first fault as after some faults, and the
// sides do not have the same processes at both times.
func (s *soaking) shares(t *testing.T) map[string]float64 {
	events := s.events(t)
	from, to := make(map[string]time.Duration), make(map[string]time.Duration) // of each life
	frozen := make(map[string][][2]time.Duration)
	on := make(map[uint64]time.Duration)
	for _, e := range events {
		switch {
		case e.Kind == history.KindFaultOn:
			on[e.Call] = e.Time
		case e.Kind == history.KindFaultOff:
			frozen[e.Text] = append(frozen[e.Text], [2]time.Duration{on[e.Call], e.Time})
		case e.Client != "":
			if from[e.Client] == 0 {
				from[e.Client] = e.Time
			}
			to[e.Client] = e.Time
		}
	}
	granted, fair := make(map[string]float64), make(map[string]float64)
	for _, e := range events {
		if e.Kind != history.KindGrant {
			continue
		}
		askers := make(map[string]float64)
		all := 0.0
		for _, l := range s.lives {
			out := slices.ContainsFunc(frozen[l.label], func(f [2]time.Duration) bool { return f[0] <= e.Time && e.Time <= f[1] })
			if l.label != e.Client && (out || e.Time < from[l.label] || e.Time > to[l.label]) {
				continue
			}
			askers[side(l.label)] += float64(l.askers)
			all += float64(l.askers)
		}
		granted[side(e.Client)]++
		for side, n := range askers {
			fair[side] += n / all
		}
	}
	shares := make(map[string]float64)
	for side := range granted {
		shares[side] = granted[side] / fair[side]
		t.Logf("%s: %.0f grants, %.0f if all callers had been served equally", side, granted[side], fair[side])
	}
	return shares
}

// side returns "java" or "go".
func side(label string) string { return strings.TrimRight(label, "0123456789") }
