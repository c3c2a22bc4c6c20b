package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// java is a Java process in which each buyer is a thread.
type java struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser

	buyers  atomic.Int64
	mu      sync.Mutex // guards the following fields
	calls   int
	pending map[string]chan string // by the number of the call
	ended   bool
}

func startJava(ctx context.Context, command []string, addr string) (*java, error) {
	j := &java{cmd: exec.CommandContext(ctx, command[0], command[1:]...), pending: make(map[string]chan string)}
	stdin, err1 := j.cmd.StdinPipe()
	stdout, err2 := j.cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	j.stdin = stdin
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	go j.read(stdout) // ends when the process ends
	if _, err := j.call("main", "open", "single", "redis://"+addr, "30000"); err != nil {
		j.stop()
		return nil, err
	}
	return j, nil
}

// read delivers the answers. Each answer consists of a number, "ok" or "error",
// and a text.
func (j *java) read(stdout io.Reader) {
	for in := bufio.NewScanner(stdout); in.Scan(); {
		number, answer, _ := strings.Cut(in.Text(), "\t")
		j.mu.Lock()
		if c := j.pending[number]; c != nil {
			c <- answer
			delete(j.pending, number)
		}
		j.mu.Unlock()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	for _, c := range j.pending {
		c <- "error\tthe process has ended"
	}
	j.pending = nil
}

func (j *java) call(thread, command string, args ...string) (string, error) {
	answers := make(chan string, 1)
	j.mu.Lock()
	if j.ended {
		j.mu.Unlock()
		return "", errors.New("java: the process has ended")
	}
	j.calls++
	number := strconv.Itoa(j.calls)
	j.pending[number] = answers
	line := strings.Join(append([]string{number, "shop", thread, command}, args...), "\t")
	_, err := io.WriteString(j.stdin, line+"\n")
	j.mu.Unlock()
	if err != nil {
		return "", fmt.Errorf("java: %w", err)
	}
	kind, text, _ := strings.Cut(<-answers, "\t")
	if kind != "ok" {
		return "", fmt.Errorf("java: %s", text)
	}
	return text, nil
}

// buy makes a separate thread buy a coupon.
func (j *java) buy(_ context.Context, lock string) (string, error) {
	thread := "buyer " + strconv.FormatInt(j.buyers.Add(1), 10)
	return j.call(thread, "buy", lock, stock, strconv.FormatInt(moment.Milliseconds(), 10))
}

// stop ends the process and waits for it.
func (j *java) stop() {
	j.stdin.Close()
	j.cmd.Process.Kill() // an error means that the process has ended
	_ = j.cmd.Wait()     // which was killed
}
