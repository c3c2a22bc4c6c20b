package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
	"github.com/go-dsync/dsync/test/interop/agent"
)

const (
	permitLimit   = 5
	permitAskers  = 3               // threads or goroutines of each process
	permitKills   = 2 * time.Second // between two kills
	permitMargin  = 50 * time.Millisecond
	permitFreedIn = soakTTL + 2*time.Second
)

// TestSoakPermits makes threads of two Java processes and goroutines of two Go
// processes acquire permits of the same name, while processes are killed. At
// the end, all processes are killed. The test counts the held permits itself
// and also reads them from the server's keys.
func TestSoakPermits(t *testing.T) {
	t.Parallel()
	for _, version := range agent.Versions(agent.New, agent.Middle, agent.Old) {
		t.Run("redisson "+version, func(t *testing.T) { t.Parallel(); soakPermits(t, version) })
	}
}

// places is protected by permits: it counts the permits of the visits inside.
type places struct {
	mu      sync.Mutex
	inside  []*visit
	visits  map[string]int // of each side
	most    int
	tooMany []string
}

// visit is the stay of a process with permits. It ends when the process
// releases them. If the process is killed, it ends at a moment before which no
// server ends the permits.
type visit struct {
	who   string
	n     int
	until time.Time
}

func (p *places) enter(v *visit, side string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.inside = slices.DeleteFunc(append(p.inside, v), func(v *visit) bool { return !now.Before(v.until) })
	sum, who := 0, ""
	for _, v := range p.inside {
		sum += v.n
		who += fmt.Sprintf(" %s %d", v.who, v.n)
	}
	p.visits[side]++
	p.most = max(p.most, sum)
	if sum > permitLimit {
		p.tooMany = append(p.tooMany, who)
	}
}

func (p *places) leave(v *visit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside = slices.DeleteFunc(p.inside, func(x *visit) bool { return x == v })
}

// visit acquires permits for a moment, sometimes for longer. It reports false
// when the process has ended.
func (p *places) visit(t *testing.T, r *redisson, who, name string) bool {
	j := r.thread(who, "permits", name)
	v := &visit{who: fmt.Sprint(r.java.Pid(), " ", who), n: 1, until: time.Now().Add(soakTTL - permitMargin)}
	var c *call
	if sideOf(r) == "go" {
		v.n = 1 + rand.IntN(2)
		c = j.begin("take", strconv.Itoa(v.n))
	} else {
		c = j.begin("acquire", strconv.FormatInt(soakTTL.Milliseconds(), 10))
	}
	if c.wait(t); c.err != nil {
		return false
	}
	p.enter(v, sideOf(r))
	hold := rand.N(10 * time.Millisecond)
	if rand.IntN(10) == 0 {
		hold = rand.N(time.Second)
	}
	time.Sleep(hold)
	if r.java.hasEnded() {
		return false // v keeps its permits until they expire
	}
	p.leave(v)
	if sideOf(r) == "go" {
		c = j.begin("unlock")
	} else {
		c = j.begin("tryRelease", c.text)
	}
	c.wait(t)
	return c.err == nil || strings.Contains(c.err.Error(), "not held")
}

// permitsAt reads four numbers in one step: the free permits, the held permits
// including expired permits, the held permits that have not expired, and the
// milliseconds from the server's current time until the last of these expires.
const permitsAt = `local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
return {tonumber(redis.call('GET', KEYS[1])), redis.call('ZCARD', KEYS[2]), redis.call('ZCOUNT', KEYS[2], '(' .. string.format('%.0f', now), '+inf'), last and last - now or 0}`

// watchPermits compares the server's keys with the limit until ended is set.
func watchPermits(t *testing.T, s *testenv.RedisServer, name string, ended *atomic.Bool) {
	looks, most := 0, int64(0)
	for ; !ended.Load(); time.Sleep(3 * time.Millisecond) {
		free, held, alive, _ := permitsOf(t, s, name)
		looks, most = looks+1, max(most, alive)
		if free < 0 || free+held != permitLimit || alive > permitLimit {
			t.Errorf("the server has %d free permits and %d held permits, of which %d have not expired; the limit is %d", free, held, alive, permitLimit)
			return
		}
	}
	t.Logf("%d checks of the server; at most %d permits were held", looks, most)
}

func permitsOf(t *testing.T, s *testenv.RedisServer, name string) (free, held, alive int64, lasts time.Duration) {
	answer, err := s.Try("EVAL", permitsAt, "2", name, "{"+name+"}:timeout")
	if err != nil {
		t.Errorf("checking the permits: %v", err)
		return 0, permitLimit, 0, 0
	}
	n := answer.([]any)
	return n[0].(int64), n[1].(int64), n[2].(int64), time.Duration(n[3].(int64)) * time.Millisecond
}

func soakPermits(t *testing.T, version string) {
	server := testenv.Redis(t)
	b := serverBed(server, version)
	name := fresh("soak-permits")
	c, err := dsync.Open(t.Context(), b.url(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetLimit(t.Context(), name, permitLimit); err != nil {
		t.Fatal(err)
	}
	p := &places{visits: map[string]int{}}
	var ended atomic.Bool
	var visitors, watcher sync.WaitGroup
	start := func(i int) *jvm {
		process, r := b.startEither(t, i)
		for n := range permitAskers {
			visitors.Go(func() { // ends when the process ends
				for p.visit(t, r, fmt.Sprint("visitor", n), name) {
				}
			})
		}
		return process
	}
	now := []*jvm{start(1), start(0), start(3), start(2)}
	watcher.Go(func() { watchPermits(t, server, name, &ended) })
	kills := 0
	next := time.Now()
	for end := next.Add(min(*soakFor/5, time.Minute)); next.Before(end); kills++ {
		next = next.Add(permitKills)
		time.Sleep(time.Until(next))
		i := kills % len(now)
		now[i].kill()
		now[i] = start(i + 1)
	}
	for _, process := range now {
		process.kill()
	}
	_, held, _, lasts := permitsOf(t, server, name)
	if lasts > permitFreedIn {
		t.Errorf("after the last kill a permit is held for %v, want at most %v", lasts, permitFreedIn)
	}
	killed := time.Now()
	visitors.Wait()
	takeAll(t, c, name)
	t.Logf("%d processes killed, %v visits, at most %d of %d permits held; of the last, %d were held at the end, and all free after %v",
		kills, p.visits, p.most, permitLimit, held, time.Since(killed).Round(time.Millisecond))
	ended.Store(true)
	watcher.Wait()
	if len(p.tooMany) > 0 || p.most < permitLimit || p.visits["go"] == 0 || p.visits["java"] == 0 {
		t.Errorf("at most %d of %d permits were held; %d times too many: %v", p.most, permitLimit, len(p.tooMany), p.tooMany)
	}
	b.onlyLimit(t, name)
}

// takeAll acquires all permits together, releases them, and closes the client.
func takeAll(t *testing.T, c *dsync.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
	defer cancel()
	lease, err := c.Lock(ctx, name, dsync.Permits(permitLimit, permitLimit))
	if err != nil {
		t.Fatalf("all permits, after all processes were killed: %v", err)
	}
	unlock(t, lease)
	if err := c.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// onlyLimit checks that the server has no key but the limit, and that all
// permits are free.
func (b *bed) onlyLimit(t *testing.T, name string) {
	t.Helper()
	node := b.node(name)
	b.wantFree(t, name, permitLimit)
	if keys := node.Do("KEYS", "*").([]any); len(keys) != 1 || keys[0] != name {
		t.Errorf("remaining keys: %q, want only %q", keys, name)
	}
	testenv.Eventually(t, func() bool { return len(node.Do("PUBSUB", "CHANNELS", "*").([]any)) == 0 }, "nobody listens")
}
