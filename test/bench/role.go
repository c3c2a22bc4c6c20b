package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// Roles are what other processes of this binary do.
var Roles = map[string]func(){
	"contender": func() { inRole(contender) },
	"holder":    func() { inRole(holder) },
	"namer":     func() { inRole(namer) },
	"waiters":   func() { inRole(waitersRole) },
	"candidate": candidateRole,
	"java":      javaRole,
}

// task is what a process is told in its environment.
type task struct {
	Backend, Row string
	Addrs        []string
	Guard        string // path
	Size         Size
	N            int
	Planted      int
}

const taskVariable = "DSYNC_BENCH_TASK"

func spawn(tb testing.TB, role string, t task) *testenv.Process {
	tb.Helper()
	text, err := json.Marshal(t)
	if err != nil {
		tb.Fatal(err)
	}
	return testenv.Spawn(tb, role, taskVariable+"="+string(text))
}

// worker is a process in its role.
type worker struct {
	task
	row   *Row
	guard *guard
	in    *bufio.Scanner
}

// inRole runs a role with its task. It ends the process.
func inRole(role func(w *worker) error) {
	w := &worker{in: bufio.NewScanner(os.Stdin)}
	err := json.Unmarshal([]byte(os.Getenv(taskVariable)), &w.task)
	if err == nil {
		if w.Size.TTL > 0 {
			heldTTL = w.Size.TTL
		}
		if w.row = find(w.Backend, w.Row); w.Planted > 0 {
			w.row = plant(w.row, w.Planted)
		}
		if w.guard, err = newGuard(w.Guard); err == nil {
			err = role(w)
		}
	}
	if err != nil {
		w.say(answer{Error: err.Error()})
	}
}

// answer is what a process tells about its task.
type answer struct {
	Contention *contention `json:",omitempty"`
	Sample     Sample      `json:",omitempty"`
	Text       string      `json:",omitempty"`
	Error      string      `json:",omitempty"`
}

func (w *worker) say(a answer) {
	text, err := json.Marshal(a)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}

// told waits for the next order. It returns false at the end.
func (w *worker) told(order any) (bool, error) {
	if !w.in.Scan() {
		return false, w.in.Err()
	}
	return true, json.Unmarshal(w.in.Bytes(), order)
}

func (w *worker) open(ctx context.Context) (Locker, error) {
	l, err := w.row.Open(ctx, w.Addrs)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return l, nil
}

// openAll opens n clients.
func (w *worker) openAll(ctx context.Context, n int) ([]Locker, error) {
	var all []Locker
	for range n {
		l, err := w.open(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// closeAll closes clients at the same time.
func closeAll(all []Locker) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, l := range all {
		wg.Go(func() { errs[i] = l.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// listen reads the next answer of a process.
func listen(p *testenv.Process) (answer, error) { return listenFor(p, hangGuard) }

func listenFor(p *testenv.Process, limit time.Duration) (answer, error) {
	var a answer
	guard := time.NewTimer(limit)
	defer guard.Stop()
	select {
	case line, ok := <-p.Lines:
		if !ok {
			return a, errors.New("the process ended without an answer")
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			return a, fmt.Errorf("%q: %w", line, err)
		}
	case <-guard.C:
		return a, fmt.Errorf("the process did not answer within %v: %w", limit, context.DeadlineExceeded)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func order(tb testing.TB, p *testenv.Process, order any) {
	tb.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		tb.Fatal(err)
	}
	p.Send(string(text))
}
