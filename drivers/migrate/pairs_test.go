package migrate_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/move"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

var (
	pairLasts = flag.Duration("pairs", 2*time.Second, "how long each storm of TestPairs lasts")
	pairSeed  = flag.Uint64("pairseed", 0, "seed of the storms of TestPairs; 0 draws one")
)

const pairClients = 6

// backend is one of the backends of the pairs.
type backend struct {
	name string

	// place returns the URL of a backend that no other pair uses. With a gate,
	// pairs would collide in the names of the gate.
	place         func(t *testing.T) string
	fenced        bool
	late          time.Duration
	insideProcess bool
}

func backends(t *testing.T) []backend {
	etcd, zk := testenv.Etcd(t).Addr, testenv.ZooKeeper(t).Addr // they have room for all pairs
	redis := func(t *testing.T) string { return testenv.Redis(t).Addr }
	var places atomic.Int64
	return []backend{
		{"redisson", func(t *testing.T) string { return "redisson://" + redis(t) }, true, time.Second, false},
		{"etcd", func(*testing.T) string { return fmt.Sprintf("etcd://%s/%d/", etcd, places.Add(1)) }, true, 2 * time.Second, false},
		{"zk", func(*testing.T) string { return fmt.Sprintf("zk://%s/%d", zk, places.Add(1)) }, true, 2 * time.Second, false},
		{"pglock", func(t *testing.T) string { return testenv.Postgres(t).URL("pglock") }, true, time.Second, false},
		{"redlock", func(t *testing.T) string {
			return fmt.Sprintf("redlock://%s,%s,%s?durable=true", redis(t), redis(t), redis(t))
		}, false, time.Second, false},
		{"memory", func(*testing.T) string { return fmt.Sprint("memory://pairs-", places.Add(1)) }, true, 0, true},
		{"redis-string", func(t *testing.T) string { return "redis-string://" + redis(t) + "?durable=true" }, false, time.Second, false},
		{"sqllock", sqlTable, true, time.Second, false},
	}
}

// sqlTable starts a server with a table of sqllock.
func sqlTable(t *testing.T) string {
	s := testenv.Postgres(t)
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `CREATE TABLE dsync_locks (name text COLLATE "C" PRIMARY KEY, version text NOT NULL, written bigint NOT NULL, value text NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return s.URL("pgtable") + "?poll=20ms"
}

// movesTo reports whether the two are a pair. String locks are only old
// backends. They move to one backend by seals and to another one with a gate.
func (b backend) movesTo(to backend) bool {
	const texts = "redis-string"
	return to.name != texts && (b.name != texts || to.name == "redisson" || to.name == "pglock")
}

// TestPairs moves clients through the phases between every two backends. Some
// of the clients' processes are killed, and some are stopped. The -parallel
// flag sets how many pairs run concurrently. Phases and faults follow the
// clock, so with more pairs per processor each pair has fewer grants in
// between.
func TestPairs(t *testing.T) {
	all := backends(t)
	for i, from := range all {
		for j, to := range all {
			if !from.movesTo(to) {
				continue
			}
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				if (i+j)%3 != 0 { // from each backend to two, and to each from two
					testenv.Long(t)
				}
				t.Parallel()
				p := &pairStorm{t: t, from: from, to: to, seed: *pairSeed}
				if p.seed == 0 {
					p.seed = rand.Uint64()
				}
				p.prepare()
				p.refused()
				p.run()
			})
		}
	}
}

type pairStorm struct {
	t        *testing.T
	from, to backend
	old, new string // their URLs
	gated    bool
	seed     uint64
	start    time.Time
	dir      string
	own      *history.History
	files    []string
	ready    chan struct{} // receives a value when a client has locked something
	begin    chan struct{} // closed when they may change the phase
}

// prepare opens the two backends until the end of the test, because a backend
// inside this process lives only as long as it is open.
func (p *pairStorm) prepare() {
	p.old, p.new = p.from.place(p.t), p.to.place(p.t)
	_, seals := drivertest.Open(p.t, p.old).(move.Sealer)
	_, marks := drivertest.Open(p.t, p.new).(move.Marker)
	p.gated = !seals || !marks
}

// pairURL returns the URL of the pair in a phase.
func (p *pairStorm) pairURL(more string) string {
	return "migrate:?from=" + url.QueryEscape(p.old) + "&to=" + url.QueryEscape(p.new) + more
}

// refused checks that impossible requests are refused for the right reason.
func (p *pairStorm) refused() {
	var wrong = map[string]error{}
	if p.gated {
		wrong["&phase=dual"] = migrate.ErrNeedsGate
	}
	if p.from.fenced && !p.to.fenced {
		wrong["&phase=dual"] = migrate.ErrTokens
	}
	if p.from.fenced && p.to.fenced {
		wrong["&phase=old&gate=true"] = migrate.ErrTokens
	}
	for more, want := range wrong {
		d, _, err := driver.Open(p.t.Context(), p.pairURL(more))
		if !errors.Is(err, want) || !errors.Is(err, errors.ErrUnsupported) {
			p.t.Errorf("%s: got %v, want %v", more, err, want)
		}
		if err == nil {
			_ = d.Close(p.t.Context())
		}
	}
}

func (p *pairStorm) run() {
	p.t.Logf("seed %d: to replay, -run '^%s$' -pairs %v -pairseed %d", p.seed, p.t.Name(), *pairLasts, p.seed)
	p.start, p.dir, p.ready = time.Now(), p.t.TempDir(), make(chan struct{}, 2*pairClients)
	p.begin = make(chan struct{})
	own, err := history.Create(p.file("own"), "own")
	if err != nil {
		p.t.Fatal(err)
	}
	p.own = own
	own.Note(fmt.Sprint("seed ", p.seed))
	if p.from.insideProcess || p.to.insideProcess {
		p.inside()
	} else {
		p.processes()
	}
	if err := own.Close(); err != nil {
		p.t.Fatal(err)
	}
	begun := slices.DeleteFunc(p.files, func(path string) bool { // a client that was killed before may have none
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	events, err := history.Read(begun...)
	if err != nil {
		p.t.Fatal(err)
	}
	v := history.Judge(events, history.Bounds{
		Fenced: !p.gated && p.from.fenced && p.to.fenced, MinClients: pairClients, MinGrants: pairClients,
		Linger: pairTTL + max(p.from.late, p.to.late), Wake: 10 * pairTTL, Stuck: 20 * pairTTL, Recover: 5 * pairTTL, MaxUnknown: 0.9,
	})
	p.t.Logf("%d attempts, %d granted, %d lost, %d unknown, %d faults", v.Attempts, v.Granted, v.Lost, v.Unknown, v.Faults)
	if err := v.Err(); err != nil {
		p.t.Errorf("seed %d: %v", p.seed, err)
	}
}

func (p *pairStorm) file(label string) string {
	path := fmt.Sprintf("%s/%d", p.dir, len(p.files))
	p.files = append(p.files, path)
	return path
}

// client returns a client of the storm, in a phase.
func (p *pairStorm) client(i int, label string, phase migrate.Phase) *pairClient {
	more := "&ttl=" + pairTTL.String() + "&phase=" + phase.String()
	if p.gated {
		more += "&gate=true&fenced=false"
	}
	return &pairClient{
		Label: label, URL: p.pairURL(more), Names: p.t.Name(), History: p.file(label),
		Seed: p.seed + uint64(i), Start: p.start.UnixNano(), Moves: *pairLasts / 4,
		ready: func() { p.ready <- struct{}{} }, begin: p.begin,
	}
}

// first returns the initial phase of clients.
func (p *pairStorm) first() migrate.Phase {
	if p.gated {
		return migrate.PhaseOld
	}
	return migrate.PhaseDual
}

// oldProgram returns a client that only knows the old backend.
func (p *pairStorm) oldProgram() *pairClient {
	c := p.client(pairClients, "old program", migrate.PhaseDual)
	c.URL = p.old
	return c
}

// inside runs the clients in this process.
func (p *pairStorm) inside() {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	var clients []*pairClient
	for i := range pairClients {
		clients = append(clients, p.client(i, fmt.Sprint("client ", i), p.first()))
	}
	if !p.gated {
		clients = append(clients, p.oldProgram())
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	moves := 0
	for _, c := range clients {
		all.Go(func() {
			n, err := c.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			if moves += n; err != nil {
				p.t.Errorf("%s: %v", c.Label, err)
			}
		})
	}
	for range clients {
		select {
		case <-p.ready:
		case <-time.After(hangGuard):
			p.t.Error("not all clients can lock")
		}
	}
	close(p.begin)
	pause(ctx, *pairLasts)
	cancel()
	all.Wait()
	p.moved(moves)
}

func (p *pairStorm) moved(moves int) {
	p.t.Logf("%d changes of the phase", moves)
	if moves == 0 {
		p.t.Error("no client has changed its phase")
	}
}

func (p *pairStorm) spawn(c *pairClient) *testenv.Process {
	text, err := json.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	return testenv.Spawn(p.t, "client", clientVariable+"="+string(text))
}

// processes runs each client in its own process. Some are killed and replaced.
// Others are stopped for longer than their leases last.
func (p *pairStorm) processes() {
	random := rand.New(rand.NewPCG(p.seed, 1000))
	running, labels := make([]*testenv.Process, pairClients), make([]string, pairClients)
	for i := range running {
		labels[i] = fmt.Sprint("client ", i)
		running[i] = p.spawn(p.client(i, labels[i], p.first()))
	}
	var old *testenv.Process
	if !p.gated {
		old = p.spawn(p.oldProgram())
		old.Line()
	}
	for _, process := range running {
		process.Line() // the client is ready
	}
	for _, process := range running {
		process.Send("begin")
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(p.t.Context(), *pairLasts)
	defer cancel()
	pause(ctx, *pairLasts/3)
	for n := 0; time.Since(begun) < *pairLasts*3/4; n++ {
		i := random.IntN(pairClients)
		if random.IntN(2) == 0 {
			off := p.own.Fault("stop", labels[i])
			running[i].Stop()
			pause(ctx, pairTTL+time.Duration(random.Int64N(int64(pairTTL/2))))
			running[i].Cont()
			off()
		} else {
			off := p.own.Fault(history.FaultKill, labels[i])
			running[i].Kill()
			off()
			labels[i] = fmt.Sprintf("client %d after fault %d", i, n)
			running[i] = p.spawn(p.client(i, labels[i], migrate.PhaseDual))
			running[i].Send("begin")
		}
		pause(ctx, time.Duration(random.Int64N(int64(pairTTL))))
	}
	<-ctx.Done()
	p.end(running, labels, old)
}

// end lets all processes finish by themselves, concurrently.
func (p *pairStorm) end(running []*testenv.Process, labels []string, old *testenv.Process) {
	var all sync.WaitGroup
	var mu sync.Mutex
	moves := 0
	for i, process := range running {
		all.Go(func() {
			err := process.Wait()
			mu.Lock()
			defer mu.Unlock()
			for line := range process.Lines {
				if n, notReady := strconv.Atoi(line); notReady == nil {
					moves += n
				}
			}
			if err != nil {
				p.t.Errorf("%s: %v", labels[i], err)
			}
		})
	}
	all.Wait()
	p.moved(moves)
	if old != nil {
		if err := old.Wait(); err != nil {
			p.t.Errorf("old program: %v", err)
		}
	}
}
