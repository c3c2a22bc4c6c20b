package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// startReader starts a Go process that executes the Java program's commands for
// read-write locks and for permits, so that the scenarios are the same for both
// sides.
func (b *bed) startReader(tb testing.TB, ttl time.Duration) (*jvm, *redisson) {
	tb.Helper()
	g := &jvm{pending: make(map[string]*call)}
	g.start(tb, testenv.Spawn(tb, "reader", "LOCK_URL="+b.url("&ttl="+ttl.String())))
	return g, &redisson{g, "go"}
}

// startEither starts a process of a fleet: a Java process if i is even, a Go
// process if it is odd.
func (b *bed) startEither(tb testing.TB, i int) (*jvm, *redisson) {
	if i%2 != 0 {
		return b.startReader(tb, soakTTL)
	}
	java := startJava(tb, b.version)
	return java, java.open(tb, b.mode, b.addrs, soakTTL)
}

// goAgent is the process of startReader.
type goAgent struct {
	driver driver.Driver
	config *driver.Config
	id     string

	mu      sync.Mutex // also guards the output
	holds   int
	threads map[string]*goThread
}

// goThread executes one command after the other.
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
			go t.run() // ends when the process ends
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

// do executes a command: number, client, thread, command, kind, name.
func (t *goThread) do(f []string) (string, error) {
	switch f[3] {
	case "owner":
		return t.hold, nil
	case "lock":
		return "", t.acquire(f[4], &driver.Request{Name: f[5]})
	case "lockAt":
		err := t.acquire(f[4], &driver.Request{Name: f[5]})
		return fmt.Sprint(time.Now().UnixNano()), err
	case "take": // n permits, with the limit that is set
		n, err := strconv.Atoi(f[6])
		if err != nil {
			return "", err
		}
		return "", t.acquire(f[4], &driver.Request{Name: f[5], Permits: n})
	case "tryLock":
		err := t.acquire(f[4], &driver.Request{Name: f[5], NoWait: true})
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

// acquire completes a request.
func (t *goThread) acquire(kind string, r *driver.Request) error {
	a := t.agent
	a.mu.Lock()
	a.holds++
	r.Hold = fmt.Sprint(a.id, ":", a.holds)
	a.mu.Unlock()
	r.Mode = map[string]driver.Mode{"plain": driver.Exclusive, "read": driver.Read, "write": driver.Write, "permits": driver.Permit}[kind]
	r.TTL, r.Events = a.config.TTL, silent{}
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	l, err := a.driver.Acquire(ctx, r)
	if err != nil {
		return err
	}
	if t.lease, t.hold = l, r.Hold; r.Mode == driver.Read {
		t.hold += ":read" // the field by which the lock identifies it
	}
	renewing, stop := context.WithCancel(context.Background())
	t.stop = stop
	go t.renew(renewing, l)
	return nil
}

// renew runs until ctx ends.
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
