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
	"github.com/go-dsync/dsync/conformance/history"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	soakWait = time.Second // limit of impatient attempts
	soakHold = 20 * time.Millisecond
)

// impatient reports whether an attempt waits for at most soakWait. Half of the
// attempts do.
func impatient() bool { return rand.IntN(2) == 0 }

// startJava starts a Java process of two threads.
func (s *soaking) startJava(t *testing.T, version string) *life {
	java := startJava(t, version)
	client := java.open(t, "single", []string{s.server.Addr}, soakTTL)
	l := s.born(&life{version: version, process: java.Process, askers: 2})
	l.id, _, _ = strings.Cut(client.thread("owner", s.kind, "").owner(t), ":")
	for i := range l.askers {
		s.wg.Go(func() {
			for !s.ended.Load() && s.useJava(t, client, l.label, i) {
			}
		})
	}
	return l
}

// useJava makes a thread acquire a lock and reports whether its process is
// alive.
func (s *soaking) useJava(t *testing.T, client *redisson, label string, i int) bool {
	name := s.names[rand.IntN(len(s.names))]
	j := client.thread(fmt.Sprint(label, ".", i), s.kind, name)
	op := s.history.Begin(history.Attempt{Client: label, Name: name})
	claim := javaClaim{time.Now().Add(soakTTL)}
	var c *call
	granted := ""
	if impatient() {
		c, granted = j.begin("tryLockFor", strconv.FormatInt(soakWait.Milliseconds(), 10), "-1"), "true"
	} else {
		c = j.acquire(0)
	}
	if c.wait(t); c.err != nil { // the process has ended
		op.Returned(nil, dsync.ErrUnknown)
		return false
	}
	if c.text != granted {
		op.Returned(nil, context.DeadlineExceeded)
		return true
	}
	op.Returned(claim, nil)
	time.Sleep(rand.N(soakHold))
	op.Releasing(t.Context())
	over := claim.Err()
	c = j.begin("unlock")
	c.wait(t)
	switch {
	case c.err == nil:
		op.Released(over) // Java may still have held the lock after its claim ended
	case strings.HasPrefix(c.err.Error(), "IllegalMonitorStateException"):
		op.Released(dsync.ErrNotHeld)
	default:
		op.Released(dsync.ErrUnknown)
		return false
	}
	return true
}

// javaClaim is a hold of a Java client. It ends one watchdog timeout after the
// call, which is the shortest time that the hold can last.
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
func (s *soaking) startGo(t *testing.T) *life {
	l := s.born(&life{askers: 4})
	l.process = testenv.Spawn(t, "soak", "SOAK_URL="+s.url(), "SOAK_LABEL="+l.label, "SOAK_NAMES="+strings.Join(s.names, ","),
		"SOAK_HISTORY="+filepath.Join(s.dir, l.label), fmt.Sprint("SOAK_ASKERS=", l.askers))
	var ok bool
	if l.id, ok = strings.CutPrefix(l.process.Line(), "started "); !ok {
		t.Fatal("a Go process does not report its identity")
	}
	return l
}

func soakRole() {
	ctx := context.Background()
	label, names := os.Getenv("SOAK_LABEL"), strings.Split(os.Getenv("SOAK_NAMES"), ",")
	askers, err1 := strconv.Atoi(os.Getenv("SOAK_ASKERS"))
	h, err2 := history.Create(os.Getenv("SOAK_HISTORY"), label)
	client, err3 := dsync.Open(ctx, os.Getenv("SOAK_URL"), nil)
	if err := errors.Join(err1, err2, err3); err != nil {
		panic(err)
	}
	id, _, _ := strings.Cut(client.NewOwner().ID(), ":")
	fmt.Println("started", id)
	var ended atomic.Bool
	var stuck atomic.Int64
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			for !ended.Load() {
				if err := useGo(h, client, label, names[rand.IntN(len(names))]); err != nil {
					fmt.Fprintln(os.Stderr, err)
					stuck.Add(1)
				}
			}
		})
	}
	fmt.Scanln(new(string)) // until the test ends it
	ended.Store(true)
	wg.Wait()
	if err := errors.Join(client.Close(ctx), h.Close()); err != nil {
		panic(err)
	}
	if n := stuck.Load(); n > 0 {
		fmt.Println(n, "attempts were stuck")
		return
	}
	fmt.Println("ended")
}

// useGo acquires a lock for a while. It returns the error of an attempt that
// should have been granted.
func useGo(h *history.History, client *dsync.Client, label, name string) error {
	wait := hangGuard
	if impatient() {
		wait = soakWait
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	op := h.Begin(history.Attempt{Client: label, Name: name})
	lease, err := client.Lock(ctx, name)
	if op.Returned(lease, err); err != nil {
		if wait == soakWait {
			return nil
		}
		return err
	}
	time.Sleep(rand.N(soakHold))
	op.Released(lease.Unlock(op.Releasing(context.Background())))
	return nil
}
