package curator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

var soak = flag.Duration("soak", 6*time.Second, "how long TestPermitsOfFleet runs, with a kill every 2 s")

// permits executes the commands of a dsync agent for permits.
func (a *agent) permits(ctx context.Context, words []string, held **dsync.Lease) (err error) {
	if words[1] == "work" {
		return a.work(ctx, words[0])
	}
	n, err := strconv.Atoi(words[2])
	if err != nil {
		return err
	}
	take := a.client.Lock
	if words[1] == "try" {
		take = a.client.TryLock
	}
	l, err := take(ctx, a.name, dsync.Permits(n, a.limit))
	if errors.Is(err, dsync.ErrLocked) {
		return errors.New("refused")
	}
	if err == nil {
		*held = l
	}
	return err
}

// work acquires one to three permits and releases them, until the process is
// killed. A hold is "lost" if the time of its end is unknown.
func (a *agent) work(ctx context.Context, thread string) error {
	for {
		n := 1 + rand.N(3)
		l, err := a.client.Lock(ctx, a.name, dsync.Permits(n, a.limit))
		if err != nil {
			return err
		}
		fmt.Println(thread, "holds", n, time.Now().UnixMicro(), l.Owner())
		time.Sleep(rand.N(50 * time.Millisecond)) // longer than queueing takes, so all permits are in demand
		end, what := time.Now(), "frees"
		if l.Err() != nil {
			what = "lost"
		}
		fmt.Println(thread, what, n, end.UnixMicro(), l.Owner())
		if err := l.Unlock(ctx); err != nil && !errors.Is(err, dsync.ErrNotHeld) {
			return err
		}
	}
}

// TestPermits checks that clients of the two libraries wait for each other's
// permits, and agree on the limit.
func TestPermits(t *testing.T) {
	t.Parallel()
	for version, java := range commands(t, "Semaphore") {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			all := newBed(t, java)
			for name, test := range map[string]func(*bed){"turns": (*bed).takeTurns, "shared": (*bed).shareLimit} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					b := all.on(name)
					b.T = t
					test(b)
				})
			}
		})
	}
}

// takeTurns checks that waiters are granted permits in the order of the queue,
// regardless of the library that held them.
func (b *bed) takeTurns() {
	ours, java := b.peer(dsyncs, long, "LIMIT=3"), b.peer(javas, long, "LIMIT=3", "ID=java")
	line := b.on(b.name + "/locks")
	ours.do(b.T, "a", "take 2")
	java.do(b.T, "a", "take 1")
	for _, p := range []*peer{ours, java} {
		if outcome := await(b.T, "a try", p.begin("t", "try 1")); outcome != "refused" {
			b.Errorf("a try where all permits are held: %s", outcome)
		}
	}
	theirs := java.begin("b", "take 1")
	line.contenders(1)
	many := ours.begin("b", "take 2")
	line.contenders(2)
	b.waits("Java behind dsync", theirs)
	ours.do(b.T, "a", "give")
	if outcome := await(b.T, "Java behind dsync", theirs); outcome != "ok" {
		b.Fatal(outcome)
	}
	line.contenders(1)
	b.waits("dsync behind Java", many)
	java.do(b.T, "a", "give")
	if outcome := await(b.T, "dsync behind Java", many); outcome != "ok" {
		b.Fatal(outcome)
	}
	ours.do(b.T, "b", "give")
	java.do(b.T, "b", "give")
	b.on(b.name + "/leases").contenders(0)
}

// shareLimit checks that a SharedCount at the path of the name is the limit for
// both libraries.
func (b *bed) shareLimit() {
	java := b.peer(javas, long, "SHARED=yes", "ID=java")
	ours := b.peer(dsyncs, long, "LIMIT=0")
	java.do(b.T, "s", "set 2")
	ours.do(b.T, "a", "take 1")
	java.do(b.T, "a", "take 1")
	mine := ours.begin("b", "take 2")
	b.on(b.name + "/locks").contenders(1)
	b.waits("dsync", mine)
	java.do(b.T, "s", "set 4")
	if outcome := await(b.T, "dsync", mine); outcome != "ok" {
		b.Fatal(outcome)
	}
	theirs := java.begin("b", "take 1")
	b.on(b.name + "/locks").contenders(1)
	b.waits("Java", theirs)
	c, err := dsync.Open(b.Context(), "zk://"+b.server.Addr, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(context.Background()) })
	if err := c.SetLimit(b.Context(), b.name, 5); err != nil {
		b.Fatal(err)
	}
	if outcome := await(b.T, "Java", theirs); outcome != "ok" {
		b.Fatal(outcome)
	}
	if s, err := c.Inspect(b.Context(), b.name); err != nil || s.Used != 5 || s.Limit != 5 || s.Holders != 4 {
		b.Errorf("Inspect: got %+v, %v, want 5 permits of 5, and 4 holders", s, err)
	}
	if l, err := c.TryLock(b.Context(), b.name, dsync.Permits(1, 4)); !errors.Is(err, dsync.ErrLimit) {
		b.Errorf("another limit: got %v, %v, want %v", l, err, dsync.ErrLimit)
	}
}

// claim is an interval in which a process claimed to hold permits.
type claim struct {
	who        string
	n          int
	begin, end int64 // in microseconds
}

// excess is a query of the leases that found a lease beyond the limit.
type excess struct {
	who        string
	begin, end int64
}

// TestPermitsOfFleet makes processes of both libraries acquire and release
// permits while they are killed one after the other. The processes must not
// claim to hold permits beyond the limit, and no process may claim a lease that
// is beyond the limit on the server.
func TestPermitsOfFleet(t *testing.T) {
	t.Parallel()
	b := newBed(t, commands(t, "Semaphore")[newest], "-Dznode.container.checkIntervalMs=100").on("permits")
	const session, limit, threads = time.Second, 5, 3
	var claims []claim
	made, held := 0, map[string]int{}
	start := func(kind string) *peer {
		made++
		p := b.peer(kind, session, fmt.Sprint("LIMIT=", limit), fmt.Sprintf("ID=%d-", made))
		p.kind = kind
		for i := range threads {
			p.begin(fmt.Sprint("t", i), "work")
		}
		return p
	}
	kill := func(p *peer) {
		killed := time.Now().UnixMicro()
		p.Kill()
		<-p.done
		own := claimsOf(t, p, killed)
		claims = append(claims, own...)
		held[p.kind] += len(own)
	}
	kinds := []string{javas, dsyncs, javas, dsyncs}
	var fleet []*peer
	for _, kind := range kinds {
		fleet = append(fleet, start(kind))
	}
	watching, first, seen := make(chan struct{}), make(chan struct{}), make(chan []excess)
	go func() { seen <- b.excesses(limit, first, watching) }() // ends when the test has closed watching
	began := time.Now()
	waits := func() bool { // until one of Curator's clients was seen waiting
		select {
		case <-first:
			return false
		default:
			return time.Since(began) < guard
		}
	}
	for i := 0; time.Since(began) < *soak || waits(); i++ {
		time.Sleep(2 * time.Second)
		kill(fleet[i%len(fleet)])
		fleet[i%len(fleet)] = start(kinds[i%len(fleet)])
	}
	time.Sleep(time.Second)
	for _, p := range fleet {
		kill(p)
	}
	free := time.Now().Add(session + 2*time.Second)
	close(watching)
	excesses := <-seen
	b.allFree(limit, free)
	checkClaims(t, claims, limit)
	checkExcesses(t, claims, excesses)
	for _, kind := range kinds {
		if held[kind] < made {
			t.Errorf("%d processes held permits %v times: want more of both kinds", made, held)
		}
	}
	t.Logf("%d processes held permits %v times, %d checks for leases beyond the limit", made, held, len(excesses))
}

// claimsOf returns the claims of a process that was killed.
func claimsOf(t *testing.T, p *peer, killed int64) (claims []claim) {
	t.Helper()
	open := map[string]claim{}
	lost := 0
	for _, line := range p.works {
		words := strings.SplitN(line, " ", 5)
		n, err := strconv.Atoi(words[2])
		at, failed := strconv.ParseInt(words[3], 10, 64)
		if err = errors.Join(err, failed); err != nil {
			t.Fatal(line, err)
		}
		c, ok := open[words[0]]
		delete(open, words[0])
		switch {
		case words[1] == "holds":
			open[words[0]] = claim{words[4], n, at, 0}
		case words[1] == "frees" && ok:
			c.end = at
			claims = append(claims, c)
		default:
			lost++
		}
	}
	for _, c := range open {
		c.end = killed
		claims = append(claims, c)
	}
	if lost > 0 {
		t.Logf("a process of %s has lost %d holds", p.kind, lost)
	}
	return claims
}

// allFree waits until no lease is left, and checks that all permits become free
// in time.
func (b *bed) allFree(limit int, until time.Time) {
	b.Helper()
	testenv.Eventually(b.T, func() bool {
		leases, _, err := b.users.Children("/" + b.name + "/leases")
		return err == nil && len(leases) == 0 || errors.Is(err, gozk.ErrNoNode)
	}, "no lease remains")
	if late := time.Since(until); late > 0 {
		b.Errorf("the last permit became free %v too late", late)
	}
	c, err := dsync.Open(b.Context(), "zk://"+b.server.Addr, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(context.Background())
	l, err := c.Lock(b.Context(), b.name, dsync.Permits(limit, limit))
	if err == nil {
		err = l.Unlock(b.Context())
	}
	if err != nil {
		b.Error(err)
	}
	b.contenders(0) // nor the node of the name
}

// excesses queries the leases until stop is closed, and returns the owners of
// leases beyond the limit. It closes first when it finds the first one.
func (b *bed) excesses(limit int, first chan<- struct{}, stop <-chan struct{}) (found []excess) {
	dir := "/" + b.name + "/leases"
	for {
		select {
		case <-stop:
			return found
		default:
		}
		begin := time.Now().UnixMicro()
		leases, _, err := b.users.Children(dir)
		end := time.Now().UnixMicro()
		if err != nil && !errors.Is(err, gozk.ErrNoNode) {
			b.Error(err)
			return found
		}
		head := func(lease string) string { return lease[:len(lease)-10] }
		before := len(found)
		slices.SortFunc(leases, func(a, b string) int { return cmp.Compare(a[len(a)-10:], b[len(b)-10:]) })
		for _, lease := range leases[min(limit, len(leases)):] {
			own := slices.IndexFunc(leases, func(l string) bool { return head(l) == head(lease) })
			text, _, err := b.users.Get(dir + "/" + leases[own])
			if err != nil {
				continue // deleted in the meantime
			}
			var value struct{ Owner string }
			if json.Unmarshal(text, &value) != nil {
				value.Owner = string(text)
			}
			found = append(found, excess{value.Owner, begin, end})
		}
		if before == 0 && len(found) > 0 {
			close(first)
		}
	}
}

// checkClaims adds up the permits that were held at the same time.
func checkClaims(t *testing.T, claims []claim, limit int) {
	t.Helper()
	type change struct {
		at int64
		n  int
	}
	var changes []change
	for _, c := range claims {
		changes = append(changes, change{c.begin, c.n}, change{c.end, -c.n})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	held, most := 0, 0
	for _, c := range changes {
		held += c.n
		most = max(most, held)
	}
	if most > limit {
		t.Errorf("%d of %d permits were held at the same time", most, limit)
	}
	if most < limit {
		t.Errorf("at most %d of %d permits were held at the same time: want all of them at times", most, limit)
	}
}

// checkExcesses checks that no process claimed to hold a lease beyond the limit
// on the server.
func checkExcesses(t *testing.T, claims []claim, excesses []excess) {
	t.Helper()
	by := map[string][]claim{}
	for _, c := range claims {
		by[c.who] = append(by[c.who], c)
	}
	for _, e := range excesses {
		for _, c := range by[e.who] {
			if c.begin <= e.begin && e.end <= c.end {
				t.Errorf("%s held permits from %d to %d, and its lease was beyond the limit then", c.who, c.begin, c.end)
			}
		}
	}
	if len(excesses) == 0 {
		t.Error("no lease was seen beyond the limit: want leases of Curator's waiters")
	}
}
