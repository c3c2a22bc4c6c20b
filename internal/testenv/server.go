// Package testenv starts real servers for tests: private ones, on loopback ports and in temporary directories of their own, which
// are gone when the test ends, also when the test binary is killed. A server can be killed, started again, frozen and thawed; the
// link to it can be disturbed ([Wire]); and a test can run parts of itself in other processes ([Main], [Spawn]).
//
// Nothing here knows a driver or its client library: what a test asks a server through this package, it asks behind the back of
// the code under test.
package testenv

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// hangGuard bounds every wait of this package. It is no expectation of how long something takes.
const hangGuard = 60 * time.Second

// Server is a process that serves, on the same address for as long as the test lasts. Its methods fail the test when they cannot do
// what they say, and may be called concurrently.
type Server struct {
	// Addr is where it listens, as host:port.
	Addr string

	tb    testing.TB
	name  string
	log   string                          // path of what the process writes
	argv  []string                        // its command line
	ready func(ctx context.Context) error // one attempt to be answered

	mu   sync.Mutex
	proc *process // nil before the first start
}

// Start starts the server where it is not running and returns when it answers.
func (s *Server) Start() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil {
		s.tb.Fatal(err)
	}
}

// Kill ends the server by SIGKILL, frozen or not, and returns when the process is gone. The address stays refused until Start.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

// Restart is Kill and Start: what the server did not keep on disk is lost.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.Start()
}

// Freeze stops the server (SIGSTOP) and returns when all its threads stand still. The kernel goes on to accept connections and
// requests for it, which it handles after Thaw.
func (s *Server) Freeze() {
	s.tb.Helper()
	s.signal((*process).freeze)
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() {
	s.tb.Helper()
	s.signal((*process).thaw)
}

// Ping returns when the server has answered to a small request, or an error if it does not.
func (s *Server) Ping(ctx context.Context) error { return s.ready(ctx) }

// Pid is the process id of the server, of its last life if it is not running.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.cmd.Process.Pid
}

func (s *Server) signal(send func(*process) error) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := send(s.proc); err != nil {
		s.tb.Fatalf("%s: %v", s.name, err)
	}
}

// launch starts s for the first time and has it stopped at the end of the test.
func (s *Server) launch() {
	s.tb.Helper()
	s.tb.Cleanup(func() {
		s.Kill() // at once: nothing in the temporary directory is worth an orderly end
		if s.tb.Failed() {
			s.tb.Logf("end of the log of %s at %s:\n%s", s.name, s.Addr, s.tail())
		}
	})
	s.Start()
}

func (s *Server) start() error {
	if s.proc != nil && !s.proc.ended() {
		return nil
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Dir = filepath.Dir(s.log)
	cmd.Stdout, cmd.Stderr = log, log
	if s.proc, err = startProcess(cmd); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.proc.done:
			return fmt.Errorf("%s at %s ended at start: %v; end of its log:\n%s", s.name, s.Addr, s.proc.err, s.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s at %s does not answer: %v; end of its log:\n%s", s.name, s.Addr, err, s.tail())
		}
	}
}

func (s *Server) kill() {
	if s.proc != nil {
		s.proc.kill()
	}
}

// tail returns the last lines of the log.
func (s *Server) tail() []byte {
	log, err := os.ReadFile(s.log)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-30):], []byte("\n"))
}
