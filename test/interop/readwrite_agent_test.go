package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// startReader starts a Go process that carries out the commands of the Java program for read-write locks, so that scenarios are the same for
// both sides.
func (b *bed) startReader(tb testing.TB, ttl time.Duration) (*jvm, *redisson) {
	tb.Helper()
	g := &jvm{pending: make(map[string]*call)}
	g.start(tb, testenv.Spawn(tb, "reader", "LOCK_URL="+b.url("&ttl="+ttl.String())))
	return g, &redisson{g, "go"}
}

// goAgent is the process of startReader.
type goAgent struct {
	driver driver.Driver
	config *driver.Config
	id     string

	mu      sync.Mutex // also of the output
	holds   int
	threads map[string]*goThread
}

// goThread carries one command out after the other.
type goThread struct {
	agent *goAgent
	todo  chan []string
	lease driver.Lease
	hold  string
	stop  func() // ends the renewals of lease
}

func readWriteRole() {
	d, config, err := driver.Open(context.Background(), os.Getenv("LOCK_URL"))
	if err != nil {
		panic(err)
	}
	a := &goAgent{driver: d, config: config, id: fmt.Sprintf("00000000-0000-4000-8000-%012d", os.Getpid()), threads: make(map[string]*goThread)}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		f := strings.Split(in.Text(), "\t")
		t := a.threads[f[2]]
		if t == nil {
			t = &goThread{agent: a, todo: make(chan []string, 10)}
			a.threads[f[2]] = t
			go t.run() // ends with the process
		}
		t.todo <- f
	}
}

func (t *goThread) run() {
	for f := range t.todo {
		text, err := t.do(f)
		outcome := "ok"
		if err != nil {
			outcome, text = "error", err.Error()
		}
		t.agent.mu.Lock()
		fmt.Printf("%s\t%s\t%s\n", f[0], outcome, text)
		t.agent.mu.Unlock()
	}
}

// do carries a command out: number, client, thread, command, kind, name.
func (t *goThread) do(f []string) (string, error) {
	switch f[3] {
	case "owner":
		return t.hold, nil
	case "lock":
		return "", t.acquire(f[4], f[5], false)
	case "lockAt":
		err := t.acquire(f[4], f[5], false)
		return fmt.Sprint(time.Now().UnixNano()), err
	case "tryLock":
		err := t.acquire(f[4], f[5], true)
		if errors.Is(err, driver.ErrLocked) {
			return "false", nil
		}
		return "true", err
	case "unlock":
		t.stop()
		return "", t.lease.Release(context.Background())
	case "unlockAt":
		t.stop()
		at := time.Now().UnixNano()
		return fmt.Sprint(at), t.lease.Release(context.Background())
	case "force":
		err := t.agent.driver.(driver.ForceUnlocker).ForceUnlock(context.Background(), f[5])
		return fmt.Sprint(err == nil), nil
	}
	return "", errors.ErrUnsupported
}

func (t *goThread) acquire(kind, name string, try bool) error {
	a := t.agent
	a.mu.Lock()
	a.holds++
	hold := fmt.Sprint(a.id, ":", a.holds)
	a.mu.Unlock()
	mode := map[string]driver.Mode{"plain": driver.Exclusive, "read": driver.Read, "write": driver.Write}[kind]
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	l, err := a.driver.Acquire(ctx, &driver.Request{Name: name, Hold: hold, Mode: mode, TTL: a.config.TTL, NoWait: try, Events: silent{}})
	if err != nil {
		return err
	}
	t.lease, t.hold = l, hold
	renewing, stop := context.WithCancel(context.Background())
	t.stop = stop
	go t.renew(renewing, l)
	return nil
}

// renew ends with ctx.
func (t *goThread) renew(ctx context.Context, l driver.Lease) {
	ttl := t.agent.config.TTL
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(ttl / 3):
			if errors.Is(l.Renew(ctx, ttl), driver.ErrNotHeld) {
				return
			}
		}
	}
}
