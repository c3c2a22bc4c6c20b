package interop

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/testenv"
)

// A Java program that still uses the old backend of a migration.

func TestMigration(t *testing.T) {
	tool := buildTool(t)
	onBeds(t, "single", func(t *testing.T, b *bed) {
		m := &move{bed: b, to: "redisson://" + testenv.Redis(t).Addr + "?fence=redisson", tool: tool}
		t.Run("java holds a name, and then waits without success", m.leftBehind)
		t.Run("java waits while the name moves", m.waitsMeanwhile)
		t.Run("a crowd of both", m.crowd)
	})
}

// move is a migration of the locks of a bed to another Redis.
type move struct {
	*bed
	to   string
	tool string // the dsync command
}

func buildTool(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "dsync")
	build := exec.Command("go", "build", "-o", path, "./cmd/dsync")
	build.Dir = "../.." // it belongs to another module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// mover returns a client that takes part in the migration, and its driver.
func (m *move) mover(t *testing.T, phase migrate.Phase) (*dsync.Client, *migrate.Driver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
	defer cancel()
	d, _, err := driver.Open(ctx, "migrate:?from="+url.QueryEscape(m.url(""))+"&to="+url.QueryEscape(m.to)+"&phase="+phase.String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := dsync.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c, d.(*migrate.Driver)
}

// status runs `dsync migrate status` until it exits with the given status and
// prints all texts.
func (m *move) status(t *testing.T, status int, name string, texts ...string) {
	t.Helper()
	var out []byte
	got := -1
	for end := time.Now().Add(hangGuard); time.Now().Before(end); {
		cmd := exec.Command(m.tool, "migrate", "status", name)
		cmd.Env = append(os.Environ(), "DSYNC_FROM="+m.url(""), "DSYNC_TO="+m.to)
		out, _ = cmd.CombinedOutput() // the exit code reports it
		got = cmd.ProcessState.ExitCode()
		missing := 0
		for _, text := range texts {
			if !bytes.Contains(out, []byte(text)) {
				missing++
			}
		}
		if got == status && missing == 0 {
			return
		}
	}
	t.Errorf("dsync migrate status: got status %d, want %d and %q in\n%s", got, status, texts, out)
}

// leftBehind checks that a name moves when the Java program releases it, and
// never comes back to the program.
func (m *move) leftBehind(t *testing.T) {
	name := fresh("behind")
	now, _ := m.mover(t, migrate.PhaseNew)
	dual, _ := m.mover(t, migrate.PhaseDual)
	j, late := m.redisson.thread(name, "plain", name), m.redisson.thread(name+" late", "plain", name)
	j.acquire(0).ok(t)
	m.status(t, 3, name, "behind: "+name, j.owner(t))
	refuses(t, now, name)
	refuses(t, dual, name)
	w := lockLater(now, name)
	m.subscribed(t, channelOf(name), 1)
	if w.ended() {
		t.Fatalf("phase new got the lock that java holds: %v, %v", w.lease, w.err)
	}
	m.holds(t, name, j.owner(t), "1")
	j.do(t, "unlock")
	lease := w.granted(t)

	j.begin("tryLock").equals(t, "false")
	vain := late.acquire(0)
	m.subscribed(t, channelOf(name), 1)
	m.status(t, 3, name, "behind: "+name, "waiting for it on the old backend")
	for i := range 20 {
		unlock(t, lease)
		lease = lock(t, []dsync.Locker{now, dual}[i%2], name)
		j.begin("tryLock").equals(t, "false")
	}
	unlock(t, lease)
	j.begin("tryLock").equals(t, "false") // nor when the name is free
	if vain.ended() {
		t.Errorf("java got a lock that has moved: %v", vain.err)
	}
	late.interrupt(t)
	if vain.wait(t); vain.err == nil || !strings.HasPrefix(vain.err.Error(), "InterruptedException") {
		t.Errorf("java's wait: got %v, want an interruption", vain.err)
	}
	m.status(t, 0, name, "1 moved")
}

// waitsMeanwhile covers a Java waiter on the old backend when the name is
// sealed.
func (m *move) waitsMeanwhile(t *testing.T) {
	name := fresh("meanwhile")
	dual, _ := m.mover(t, migrate.PhaseDual)
	moving, _ := m.mover(t, migrate.PhaseNew)
	lease := lock(t, dual, name)
	j := m.redisson.thread(name, "plain", name)
	w := j.acquire(0)
	m.subscribed(t, channelOf(name), 1)
	next := lockLater(moving, name)
	unlock(t, lease)
	select {
	case <-w.done: // it was granted first
		j.do(t, "unlock")
	case <-next.done:
	}
	unlock(t, next.granted(t))
	if !w.ended() {
		m.status(t, 3, name, "1 client is waiting for it on the old backend")
		j.interrupt(t)
		w.wait(t)
	}
	j.begin("tryLock").equals(t, "false")
	m.status(t, 0, name, "1 moved")
}

// crowd makes Java threads lock the same names as Go programs, which switch to
// phase new one after the other.
func (m *move) crowd(t *testing.T) {
	names := []string{fresh("crowd"), fresh("crowd"), fresh("crowd")}
	sealed := func(name string) bool { return m.fields(name)["dsync:seal"] != "" }
	c := &crowdState{t: t, sealed: sealed, inside: map[string]string{}, moved: map[string]bool{}, tokens: map[string]uint64{}, granted: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	javas := m.java.open(t, m.mode, m.addrs, watchdog)
	for i := range 4 {
		threads := map[string]*thread{}
		for _, name := range names {
			threads[name] = javas.thread(name+string(rune('a'+i)), "plain", name)
		}
		all.Go(func() {
			for ctx.Err() == nil {
				name := names[rand.IntN(len(names))]
				c.java(name, threads[name])
			}
		})
	}
	var drivers []*migrate.Driver
	for range 3 {
		client, d := m.mover(t, migrate.PhaseDual)
		drivers = append(drivers, d)
		for range 2 {
			all.Go(func() {
				for ctx.Err() == nil {
					c.goes(ctx, names[rand.IntN(len(names))], client, d)
				}
			})
		}
	}
	moment := func() { <-time.After(300 * time.Millisecond) }
	for _, phase := range []migrate.Phase{migrate.PhaseDual, migrate.PhaseNew} {
		for _, d := range drivers {
			if err := d.SetPhase(ctx, phase); err != nil {
				t.Error(err)
			}
			moment()
		}
	}
	moment()
	cancel()
	all.Wait()
	for _, who := range []string{"java", "dual", "new", "refused"} {
		if c.granted[who] == 0 {
			t.Errorf("no waiter was counted as %s: %v", who, c.granted)
		}
	}
	// Redisson may stay subscribed after a tryLock that timed out. The Go
	// programs, which are still running, do not.
	m.java.call(javas.name, "main", "close").ok(t)
	for _, name := range names {
		if !c.moved[name] {
			t.Errorf("%s was not locked in phase new", name)
		}
		m.status(t, 0, name, "1 moved")
	}
}

// crowdState records the holders of the names, as far as they have reported.
type crowdState struct {
	t       *testing.T
	mu      sync.Mutex
	inside  map[string]string
	sealed  func(name string) bool
	moved   map[string]bool // sealed by a grant
	tokens  map[string]uint64
	granted map[string]int // by phase, or "java", or "refused" for Java after the move
}

func (c *crowdState) enter(name, who string) {
	if other := c.inside[name]; other != "" {
		c.t.Errorf("%s got %s, which %s holds", who, name, other)
	}
	c.inside[name] = who
	c.granted[who]++
}

func (c *crowdState) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside[name] = ""
}

func (c *crowdState) java(name string, j *thread) {
	c.mu.Lock()
	moved := c.moved[name]
	c.mu.Unlock()
	call := j.begin("tryLockFor", "30", "-1")
	if call.wait(c.t); call.err != nil {
		c.t.Errorf("java %s: %v", call.what, call.err)
		return
	}
	c.mu.Lock()
	if call.text == "true" {
		c.enter(name, "java")
	} else if moved {
		c.granted["refused"]++
	}
	c.mu.Unlock()
	if call.text != "true" {
		return
	}
	if moved {
		c.t.Errorf("java got %s after it had moved", name)
	}
	c.leave(name)
	end := j.begin("unlock")
	if end.wait(c.t); end.err != nil {
		c.t.Errorf("java %s: %v", end.what, end.err)
	}
}

func (c *crowdState) goes(ctx context.Context, name string, client *dsync.Client, d *migrate.Driver) {
	phase := d.Phase()
	lease, err := client.Lock(ctx, name)
	if err != nil {
		if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
			c.t.Errorf("Lock in phase %v: %v", phase, err)
		}
		return
	}
	moved := phase == migrate.PhaseNew && c.sealed(name) // a hold of phase dual may have been passed on inside the client
	c.mu.Lock()
	c.enter(name, phase.String())
	c.moved[name] = c.moved[name] || moved
	if token := lease.Token(); token <= c.tokens[name] {
		c.t.Errorf("%s: got token %d after %d", name, token, c.tokens[name])
	} else {
		c.tokens[name] = token
	}
	c.mu.Unlock()
	<-time.After(time.Millisecond)
	c.leave(name)
	if err := lease.Unlock(ctx); err != nil {
		c.t.Errorf("Unlock in phase %v: %v", phase, err)
	}
}
