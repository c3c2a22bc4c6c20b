package curator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// peer is a process that executes commands on one name with dsync or with
// Curator. Each command names a thread. "read" and "write" acquire the name,
// "unread" and "unwrite" release it. "reads N" and "writes N" do both N times,
// and read a file or add to it while they hold the name. Candidates of Curator
// know "lead", "resign", and "leader", which returns the leader. For permits
// there are "take N", "try N" and "give". "work" acquires and releases permits
// repeatedly and reports each of them.
type peer struct {
	*testenv.Process
	wrote atomic.Int64
	done  chan struct{} // closed when the process has ended and all output has been read
	kind  string        // the library of the process
	works []string      // reports of "work"; to be read after done

	mu      sync.Mutex
	pending map[string]chan string // by thread and command
}

// separator separates the words of a command line.
const separator = "\x1f"

// guard limits a command. It is not an expected duration.
const guard = 60 * time.Second

// startPeer starts a process. With a command it is a Java process, otherwise a
// dsync process.
func startPeer(t *testing.T, command []string, env ...string) *peer {
	t.Helper()
	role := "dsync"
	if command != nil {
		role = "java"
	}
	p := &peer{Process: testenv.Spawn(t, role, append(env, "COMMAND="+strings.Join(command, separator))...), done: make(chan struct{}), pending: map[string]chan string{}}
	if got := p.Line(); got != "ready" {
		t.Fatalf("a process of %s began with %q", role, got)
	}
	go p.read() // ends when the process ends
	return p
}

func (p *peer) read() {
	for line := range p.Lines {
		words := strings.SplitN(line, " ", 3)
		switch {
		case len(words) == 2 && words[1] == "wrote":
			p.wrote.Add(1)
		case len(words) == 3 && slices.Contains([]string{"holds", "frees", "lost"}, words[1]):
			p.works = append(p.works, line)
		case len(words) == 3:
			p.mu.Lock()
			if answer := p.pending[words[0]+" "+words[1]]; answer != nil {
				answer <- words[2]
			}
			p.mu.Unlock()
		}
	}
	close(p.done)
}

// begin makes a thread execute a command. The returned channel delivers the
// outcome: "ok" or an error.
func (p *peer) begin(thread, command string) <-chan string {
	answer := make(chan string, 1)
	name, _, _ := strings.Cut(command, " ")
	p.mu.Lock()
	p.pending[thread+" "+name] = answer
	p.mu.Unlock()
	p.Send(thread + " " + command)
	return answer
}

// await returns an outcome.
func await(t *testing.T, what string, answer <-chan string) string {
	t.Helper()
	select {
	case outcome := <-answer:
		return outcome
	case <-time.After(guard):
		t.Fatalf("%s: no outcome", what)
	}
	return ""
}

// do makes a thread execute a command, which must succeed.
func (p *peer) do(t *testing.T, thread, command string) {
	t.Helper()
	if outcome := await(t, command, p.begin(thread, command)); outcome != "ok" {
		t.Errorf("%s: %s", command, outcome)
	}
}

func TestMain(m *testing.M) {
	testenv.Main(m, map[string]func(){"java": becomeJava, "dsync": func() { exitOn(beDsync()) }})
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// agent is the dsync process.
type agent struct {
	client  *dsync.Client
	name    string
	numbers *os.File
	limit   int // of permits
}

func beDsync() error {
	millis, err := strconv.Atoi(os.Getenv("SESSION"))
	if err != nil {
		return err
	}
	file, err := os.OpenFile(os.Getenv("FILE"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	c, err := dsync.Open(context.Background(), "zk://"+os.Getenv("ADDR"), &dsync.Options{TTL: time.Duration(millis) * time.Millisecond})
	if err != nil {
		return err
	}
	a := &agent{client: c, name: strings.TrimPrefix(os.Getenv("LOCK_PATH"), "/"), numbers: file}
	if text := os.Getenv("LIMIT"); text != "" {
		if a.limit, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	threads := map[string]chan []string{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		if threads[words[0]] == nil {
			threads[words[0]] = make(chan []string, 10)
			go a.thread(threads[words[0]]) // ends when the process ends
		}
		threads[words[0]] <- words
	}
	return nil
}

func (a *agent) thread(commands <-chan []string) {
	var held *dsync.Lease
	for words := range commands {
		outcome := "ok"
		if err := a.run(words, &held); err != nil {
			outcome = err.Error()
		}
		fmt.Println(words[0], words[1], outcome)
	}
}

func (a *agent) run(words []string, held **dsync.Lease) (err error) {
	mode := dsync.Write()
	if strings.Contains(words[1], "read") {
		mode = dsync.Read()
	}
	ctx := context.Background()
	switch words[1] {
	case "take", "try", "work":
		return a.permits(ctx, words, held)
	case "give":
		return (*held).Unlock(ctx)
	case "read", "write":
		*held, err = a.client.Lock(ctx, a.name, mode)
		return err
	case "unread", "unwrite":
		return (*held).Unlock(ctx)
	}
	times, err := strconv.Atoi(words[2])
	if err != nil {
		return err
	}
	for range times {
		l, err := a.client.Lock(ctx, a.name, mode)
		if err != nil {
			return err
		}
		if words[1] == "reads" {
			err = a.look(l)
		} else if err = a.add(); err == nil {
			fmt.Println(words[0], "wrote")
		}
		ended := l.Unlock(ctx)
		if words[1] == "reads" && errors.Is(ended, dsync.ErrNotHeld) {
			ended = nil // the reader may have been frozen
		}
		if err := errors.Join(err, ended); err != nil {
			return err
		}
	}
	return nil
}

const digits = 10

// add increments the first number in the file and sets the second number to the
// same value.
func (a *agent) add() error {
	text, err := a.read()
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(text[:digits])
	if err != nil {
		return err
	}
	for i := range int64(2) {
		if _, err := a.numbers.WriteAt(fmt.Appendf(nil, "%010d", n+1), i*digits); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // without the lock, the other processes could see half of the update
	}
	return nil
}

// look checks that no process writes while the lease lasts.
func (a *agent) look(l *dsync.Lease) error {
	before, err := a.read()
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	after, err := a.read()
	if err == nil && before != after && l.Err() == nil {
		err = fmt.Errorf("torn: %s became %s", before, after)
	}
	return err
}

func (a *agent) read() (string, error) {
	text := make([]byte, 2*digits)
	_, err := a.numbers.ReadAt(text, 0)
	return string(text), err
}
