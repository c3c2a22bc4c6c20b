// Package testenv starts real servers for tests. The servers are private, use
// their own loopback ports and temporary directories, and are gone when the
// test ends, even if the test binary is killed. A server can be killed,
// restarted, frozen and thawed. The link to it can be disturbed ([Wire]). A
// test can run parts of itself in other processes ([Main], [Spawn]).
//
// The package does not use drivers or their client libraries: its requests to a
// server bypass the code under test.
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

// hangGuard bounds every wait of this package. It does not predict how long an
// operation takes.
const hangGuard = 60 * time.Second

// Server is a server process that has the same address throughout the test. Its
// methods may be called concurrently, and fail the test on errors.
type Server struct {
	// Addr is the address of the server as host:port.
	Addr string

	tb    testing.TB
	name  string
	log   string                          // path of the process's output
	argv  []string                        // its command line
	ready func(ctx context.Context) error // one attempt to get a response

	mu   sync.Mutex
	proc *process // nil before the first start
}

// Start starts the server if it is not running, and returns when it responds.
func (s *Server) Start() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil {
		s.tb.Fatal(err)
	}
}

// Kill ends the server by SIGKILL, even if it is frozen, and returns when the
// process is gone. Connections to the address are refused until Start.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

// Restart is Kill and Start. Data that the server did not store on disk is
// lost.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.Start()
}

// Freeze stops the server (SIGSTOP) and returns when all its threads have
// stopped. The kernel still accepts connections and requests for it. The server
// handles them after Thaw.
func (s *Server) Freeze() {
	s.tb.Helper()
	s.signal((*process).freeze)
}

// Thaw continues a frozen server.
func (s *Server) Thaw() {
	s.tb.Helper()
	s.signal((*process).thaw)
}

// Ping returns nil when the server has responded to a small request, and an
// error if it does not respond.
func (s *Server) Ping(ctx context.Context) error { return s.ready(ctx) }

// Pid returns the process id of the server, or its last one if it is not
// running.
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

// launch starts s for the first time and stops it at the end of the test.
func (s *Server) launch() {
	s.tb.Helper()
	s.tb.Cleanup(func() {
		s.Kill() // killed immediately, because the temporary directory is not worth a graceful end
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
	err    error         // why it ended; valid after done
	frozen bool          // guarded by the owner of the process
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	EndWithUs(cmd)
	started := make(chan error)
	go func() { // ends when the process ends
		// The kernel ties the child's life to the thread that forked it, not to
		// our process. So that thread must not end as long as the child lives.
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
	p.cmd.Process.Kill() // an error means that the process has ended
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

// Storage describes how servers store their data. The zero value stores
// nothing, and it is the default.
type Storage struct {
	// Disk makes servers store their data below [os.TempDir], which must be on
	// a disk, and flush it as their packages do by default. Redis has only
	// snapshots by default. It writes a log and flushes it once a second, as
	// its redis.conf specifies.
	Disk bool
}

// Redis starts a redis-server like the function Redis.
func (s Storage) Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	if s.Disk {
		args = append([]string{"--dir", s.dir(tb), "--appendonly", "yes", "--appendfsync", "everysec"}, args...)
	}
	return redisAt(tb, loopback, args)
}

// Etcd starts an etcd like the function Etcd.
func (s Storage) Etcd(tb testing.TB, args ...string) *EtcdServer {
	tb.Helper()
	if s.Disk {
		args = append([]string{"--unsafe-no-fsync=false", "--data-dir", filepath.Join(s.dir(tb), "data")}, args...)
	}
	return startEtcd(tb, loopback, currentEtcd(tb), nil, args)
}

// ZooKeeper starts a ZooKeeper like the function ZooKeeper.
func (s Storage) ZooKeeper(tb testing.TB, settings ...string) *ZooKeeperServer {
	tb.Helper()
	if s.Disk {
		settings = append([]string{"-Dzookeeper.forceSync=yes", "preAllocSize=65536", "dataDir=" + s.dir(tb)}, settings...)
	}
	return startZooKeeper(tb, loopback, settings)
}

// Postgres starts a PostgreSQL like the function Postgres.
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

// MySQL starts a MariaDB like the function MySQL.
func (s Storage) MySQL(tb testing.TB, settings ...string) *MySQLServer {
	tb.Helper()
	if s.Disk {
		s.check(tb)
		settings = append([]string{"innodb-flush-log-at-trx-commit=1", "debug-no-sync=0", "innodb-log-file-size=96M", "innodb-buffer-pool-size=128M"}, settings...)
	}
	return MySQL(tb, settings...)
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

// check fails the test if the directories of servers are not on a disk.
func (Storage) check(tb testing.TB) {
	tb.Helper()
	if inMemory(os.TempDir()) {
		tb.Fatalf("%s is in memory: TMPDIR must name a directory on a disk", os.TempDir())
	}
}

// serverDir makes a data directory for a server and removes it at the end of
// the test. In the meantime the test holds a lock on the directory. Unlocked
// directories with the same prefix belong to killed test binaries, and are
// removed first.
func serverDir(tb testing.TB, parent, prefix string) (string, error) {
	tb.Helper()
	// cannot fail, because the pattern is not malformed
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
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
			continue // another test removed the directory as an abandoned one
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
// wait, it returns an error if another process has locked the directory. If the
// directory was removed before, the error is fs.ErrNotExist.
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
