// Package testenv starts real servers for tests: private ones, on loopback
// ports and in temporary directories of their own, which are gone when the test
// ends, also when the test binary is killed. A server can be killed, started
// again, frozen and thawed; the link to it can be disturbed ([Wire]); and a
// test can run parts of itself in other processes ([Main], [Spawn]).
//
// Nothing here knows a driver or its client library: what a test asks a server
// through this package, it asks behind the back of the code under test.
package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// hangGuard bounds every wait of this package. It is no expectation of how long
// something takes.
const hangGuard = 60 * time.Second

// Server is a process that serves, on the same address for as long as the test
// lasts. Its methods fail the test when they cannot do what they say, and may
// be called concurrently.
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

// Kill ends the server by SIGKILL, frozen or not, and returns when the process
// is gone. The address stays refused until Start.
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

// Freeze stops the server (SIGSTOP) and returns when all its threads stand
// still. The kernel goes on to accept connections and requests for it, which it
// handles after Thaw.
func (s *Server) Freeze() {
	s.tb.Helper()
	s.signal((*process).freeze)
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() {
	s.tb.Helper()
	s.signal((*process).thaw)
}

// Ping returns when the server has answered to a small request, or an error if
// it does not.
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

// process is a child of the test binary. It is reaped when it ends, and does
// not outlive the test binary.
type process struct {
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process is gone
	err    error         // why it ended; to be read after done
	frozen bool          // guarded by the owner of the process
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	EndWithUs(cmd)
	started := make(chan error)
	go func() { // ends with the process
		// The kernel ties the child's life to the thread that forked it, not to
		// our process: so that thread stays here for as long as the child
		// lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process and waits until it is reaped.
func (p *process) kill() {
	p.cmd.Process.Kill() // an error means that it has ended
	<-p.done
}

func (p *process) freeze() error {
	if p.frozen {
		return nil
	}
	if err := p.signal(sigStop); err != nil {
		return err
	}
	p.frozen = true
	return waitStopped(p.cmd.Process.Pid)
}

func (p *process) thaw() error {
	if !p.frozen {
		return nil
	}
	p.frozen = false
	return p.signal(sigCont)
}

func (p *process) signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return errors.New("the process is not running")
	}
	return err
}

// Storage is what servers do with what they write. The zero value keeps
// nothing, and so do all servers that are started without one.
type Storage struct {
	// Disk has servers keep their data below [os.TempDir], which has to be on a
	// disk, and flush them as their packages do. Redis, which has snapshots
	// alone unless it is told otherwise, writes a log, and flushes that as its
	// redis.conf says: once a second.
	Disk bool
}

// Redis starts a redis-server as the function Redis does.
func (s Storage) Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	if s.Disk {
		args = append([]string{"--dir", s.dir(tb), "--appendonly", "yes", "--appendfsync", "everysec"}, args...)
	}
	return redisAt(tb, loopback, args)
}

// Etcd starts an etcd as the function Etcd does.
func (s Storage) Etcd(tb testing.TB, args ...string) *EtcdServer {
	tb.Helper()
	if s.Disk {
		args = append([]string{"--unsafe-no-fsync=false", "--data-dir", filepath.Join(s.dir(tb), "data")}, args...)
	}
	return startEtcd(tb, loopback, currentEtcd(tb), nil, args)
}

// ZooKeeper starts a ZooKeeper as the function ZooKeeper does.
func (s Storage) ZooKeeper(tb testing.TB, settings ...string) *ZooKeeperServer {
	tb.Helper()
	if s.Disk {
		settings = append([]string{"-Dzookeeper.forceSync=yes", "preAllocSize=65536", "dataDir=" + s.dir(tb)}, settings...)
	}
	return startZooKeeper(tb, loopback, settings)
}

// Postgres starts a PostgreSQL as the function Postgres does.
func (s Storage) Postgres(tb testing.TB, settings ...string) *PostgresServer {
	tb.Helper()
	if s.Disk {
		s.check(tb)
		settings = append([]string{"fsync=on", "full_page_writes=on", "min_wal_size=80MB", "max_wal_size=1GB"}, settings...)
	}
	server := newPostgres(tb, settings)
	server.launchPostgres()
	return server
}

// dir makes the directory of a server.
func (s Storage) dir(tb testing.TB) string {
	tb.Helper()
	s.check(tb)
	dir, err := serverDir(tb, os.TempDir(), "dsync-server-")
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// check fails the test where the directories of servers are not on a disk.
func (Storage) check(tb testing.TB) {
	tb.Helper()
	if inMemory(os.TempDir()) {
		tb.Fatalf("%s is in memory: TMPDIR has to name a directory on a disk", os.TempDir())
	}
}

// serverDir makes a directory with the data of a server, which is removed at
// the end of the test. The test holds a lock on the directory meanwhile.
// Directories of the same prefix without a lock are those of test binaries that
// were killed, and are removed before.
func serverDir(tb testing.TB, parent, prefix string) (string, error) {
	tb.Helper()
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*")) // the pattern is not malformed
	for _, dir := range left {
		if unlock, err := lockDir(dir, false); err == nil {
			os.RemoveAll(dir)
			unlock()
		}
	}
	for {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return "", err
		}
		unlock, err := lockDir(dir, true)
		if os.IsNotExist(err) {
			continue // another test took the directory for one that is left
		}
		if err != nil {
			return "", err
		}
		tb.Cleanup(func() {
			os.RemoveAll(dir)
			unlock()
		})
		return dir, nil
	}
}

// lockDir locks a directory until unlock is called or the process ends. Without
// a wait, one that somebody else has locked is an error. A directory that was
// removed before is fs.ErrNotExist.
func lockDir(dir string, wait bool) (unlock func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err = lockFile(f, wait); err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f.Close, nil
}
