package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/conformance/history"
)

// workerEnv marks a process of the suite. Its value is the TTL and the URL of the backend.
const workerEnv = "DSYNC_CONFORMANCE_WORKER"

// RunWorker does nothing in a process that runs tests. In a process that the suite has started (see Backend.URL), it carries out the suite's
// orders, and does not return. Call it in TestMain, before anything else:
//
//	func TestMain(m *testing.M) {
//		conformance.RunWorker()
//		m.Run()
//	}
func RunWorker() {
	ttl, url, ok := strings.Cut(os.Getenv(workerEnv), " ")
	if !ok {
		return
	}
	if err := work(ttl, url); err != nil {
		fmt.Fprintln(os.Stderr, "conformance: worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// order is an order to a worker.
type order struct {
	Op    string // lock, check or contend
	Name  string
	Times int    `json:",omitempty"` // contend: how often
	File  string `json:",omitempty"` // contend: the counter
	Log   string `json:",omitempty"` // contend: the History
	Label string `json:",omitempty"` // contend: the label of the process in the History
}

// report is its answer.
type report struct {
	Err  string `json:",omitempty"`
	Lost bool   `json:",omitempty"` // the error matches ErrLost
}

// work carries out orders from the standard input until its end, which comes with the end of the suite's process at the latest.
func work(ttl, url string) error {
	d, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := dsync.Open(ctx, url, &dsync.Options{TTL: d})
	if err != nil {
		return err
	}
	w := &role{client: c, held: map[string]*dsync.Lease{}}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if err := out.Encode(report{}); err != nil { // it is ready
		return err
	}
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		var r report
		if err := w.carryOut(ctx, o); err != nil {
			r = report{Err: err.Error(), Lost: errors.Is(err, dsync.ErrLost)}
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, closeFor)
	defer cancel()
	return c.Close(ctx)
}

// role is the state of a worker.
type role struct {
	client *dsync.Client
	held   map[string]*dsync.Lease
}

func (w *role) carryOut(ctx context.Context, o order) error {
	switch o.Op {
	case "lock":
		l, err := w.client.Lock(ctx, o.Name)
		if err == nil {
			w.held[o.Name] = l
		}
		return err
	case "check":
		return w.held[o.Name].Err()
	case "contend":
		return w.contend(ctx, o)
	}
	return fmt.Errorf("unknown order %q", o.Op)
}

// contend locks a name, adds one to a counter that would lose concurrent updates, and unlocks the name, so many times.
func (w *role) contend(ctx context.Context, o order) error {
	h, err := history.Create(o.Log, o.Label)
	if err != nil {
		return err
	}
	for range o.Times {
		op := h.Begin(history.Attempt{Client: o.Label, Name: o.Name})
		l, err := w.client.Lock(ctx, o.Name)
		op.Returned(l, err)
		if err != nil {
			return err
		}
		err = addOne(o.File)
		unlockErr := l.Unlock(op.Releasing(ctx))
		op.Released(unlockErr)
		if err := errors.Join(err, unlockErr); err != nil {
			return err
		}
	}
	return h.Close()
}

// addOne adds one to the number in a file.
func addOne(path string) error {
	n, err := readNumber(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
}

func readNumber(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		return 0, fmt.Errorf("the counter was read in the middle of an update: %w", err)
	}
	return n, nil
}
