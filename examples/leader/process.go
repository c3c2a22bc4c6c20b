//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-dsync/dsync"
)

// nodeVariable in the environment marks a process that is a node.
const nodeVariable = "LEADER_NODE"

// job is the configuration of a node. A process reads its job from standard
// input. When the input ends, the node must end, too. It writes events to
// standard output.
type job struct {
	URL      string // of the backend
	TTL      time.Duration
	Election string // the name of the lock
	Store    string // URL
}

// nodeMain is the main function of a node process.
func nodeMain(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (status int) {
	signal.Ignore(syscall.SIGPIPE) // the end of the parent is noticed at stdin, with time to resign
	if err := doJob(ctx, bufio.NewReader(stdin), json.NewEncoder(stdout)); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func doJob(ctx context.Context, in *bufio.Reader, out *json.Encoder) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var j job
	if err := json.Unmarshal(line, &j); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the input or this process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	open := func(ctx context.Context, note string) (*dsync.Client, error) {
		return dsync.Open(ctx, j.URL, &dsync.Options{TTL: j.TTL, Note: note})
	}
	var mu sync.Mutex // guards out
	return runNode(ctx, open, j.Election, j.Store, func(e event) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(e) // an error means that the parent is gone
	})
}

// processes is a team whose nodes are operating system processes.
type processes struct{ job }

func (t *processes) String() string {
	return fmt.Sprintf("three processes, TTL %v", t.TTL)
}

func (t *processes) ways() [3]string {
	return [3]string{"gets SIGTERM", "gets SIGKILL", "gets SIGSTOP"}
}

func (t *processes) start(say func(event)) (member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), nodeVariable+"=1")
	p.cmd.Stderr = &p.stderr
	stdin, inErr := p.cmd.StdinPipe()
	stdout, outErr := p.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, p.cmd.Start()); err != nil {
		return nil, err
	}
	_ = json.NewEncoder(stdin).Encode(t.job) // if the process is gone, Wait returns the reason
	go p.listen(stdout, say)                 // ends when the process ends
	return p, nil
}

// process is one of these nodes.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan struct{}
	why    error // after done
}

func (p *process) listen(stdout io.Reader, say func(event)) {
	defer close(p.done)
	for in := json.NewDecoder(stdout); ; {
		var e event
		if in.Decode(&e) != nil {
			break
		}
		say(e)
	}
	if err := p.cmd.Wait(); err != nil {
		p.why = fmt.Errorf("%w: %s", err, bytes.TrimSpace(p.stderr.Bytes()))
	}
}

func (p *process) terminate()             { p.signal(syscall.SIGTERM) }
func (p *process) kill()                  { p.signal(syscall.SIGKILL) }
func (p *process) freeze()                { p.signal(syscall.SIGSTOP) }
func (p *process) thaw()                  { p.signal(syscall.SIGCONT) }
func (p *process) ended() <-chan struct{} { return p.done }
func (p *process) err() error             { return p.why }

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) } // an error means that the process has ended
