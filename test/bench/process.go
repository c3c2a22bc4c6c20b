package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// Roles are the main functions of other processes of the test binary.
var Roles = map[string]func(){"contender": contender}

// task is passed to a contender in its environment.
type task struct {
	Backend, Row string
	Addrs        []string
	Guard        string // path
	Clients      int
}

const taskVariable = "DSYNC_BENCH_TASK"

// contender is a process with clients of one row. It reads a bout when all
// clients are connected, and writes the tally.
func contender() {
	in := bufio.NewScanner(os.Stdin)
	clients, err := contendOnce(in)
	if err != nil {
		say(tally{Error: err.Error()})
		return
	}
	in.Scan() // the end of the input
	if err := closeAll(clients); err != nil {
		fmt.Fprintln(os.Stderr, "close:", err)
		os.Exit(1)
	}
}

func contendOnce(in *bufio.Scanner) ([]Locker, error) {
	var t task
	if err := json.Unmarshal([]byte(os.Getenv(taskVariable)), &t); err != nil {
		return nil, err
	}
	g, err := newGuard(t.Guard)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	row := findBackend(t.Backend).row(t.Row)
	clients := make([]Locker, t.Clients)
	for i := range clients {
		if clients[i], err = row.Open(ctx, t.Addrs); err != nil {
			return nil, fmt.Errorf("open: %w", err)
		}
	}
	if t.Clients == 1 { // a crowd has a different time limit for its start
		if err := pairOnce(ctx, clients[0], row.key("warm", os.Getpid())); err != nil {
			return nil, err
		}
	}
	say(tally{})
	var o bout
	if !in.Scan() {
		return nil, errors.New("there is no bout")
	}
	if err := json.Unmarshal(in.Bytes(), &o); err != nil {
		return nil, err
	}
	result, err := contend(ctx, clients, o, g)
	if err == nil {
		say(*result)
	}
	return clients, err
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

func say(t tally) { fmt.Println(text(t)) }

// text returns the JSON of a task, a bout or a tally.
func text(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // these types can be represented in JSON
	}
	return string(text)
}

// fight makes clients of a row contend in separate processes. No client remains
// open, because its session would be kept alive during the next row.
func (b *bed) fight(r *Row, clients []int, o bout) (*tally, error) {
	var processes []*testenv.Process
	defer func() {
		for _, p := range processes {
			p.Kill()
		}
	}()
	for _, n := range clients {
		t := task{Backend: b.backend.Name, Row: r.Name, Addrs: b.servers.Addrs, Guard: b.path, Clients: n}
		processes = append(processes, testenv.Spawn(b.tb, "contender", taskVariable+"="+text(t)))
	}
	for _, p := range processes {
		if _, err := listen(p); err != nil {
			return nil, err
		}
	}
	for _, p := range processes {
		p.Send(text(o))
	}
	all := &tally{}
	for _, p := range processes {
		t, err := listen(p)
		if err != nil {
			return nil, err
		}
		all.Counts = slices.Concat(all.Counts, t.Counts)
		all.Longest, all.Elapsed = max(all.Longest, t.Longest), max(all.Elapsed, t.Elapsed)
	}
	for _, p := range processes {
		if r.Kind == Peer { // its Close may hang
			p.Kill()
		} else if err := p.Wait(); err != nil {
			return nil, fmt.Errorf("close: %w", err)
		}
	}
	return all, nil
}

// listen reads the next tally of a process.
func listen(p *testenv.Process) (t tally, err error) {
	limit := time.NewTimer(hangGuard)
	defer limit.Stop()
	select {
	case line, ok := <-p.Lines:
		if !ok {
			return t, errors.New("the process ended without a response")
		}
		if err := json.Unmarshal([]byte(line), &t); err != nil {
			return t, fmt.Errorf("%q: %w", line, err)
		}
	case <-limit.C:
		return t, fmt.Errorf("the process did not answer within %v", hangGuard)
	}
	if t.Error != "" {
		err = errors.New(t.Error)
	}
	return t, err
}
