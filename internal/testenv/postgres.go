package testenv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// PostgresServer is a private PostgreSQL. Its superuser "postgres" needs no
// password. Members of the role "secret" need a password over TCP.
type PostgresServer struct {
	Server

	// Dir is its data directory.
	Dir string

	mu     sync.Mutex
	frozen []int // processes that were stopped
}

// Postgres starts a PostgreSQL server with the given settings, as in
// "max_connections=20". It does not wait for the disk (fsync=off) unless a
// setting enables that. If PostgreSQL is not installed, the test is skipped, or
// fails if CI is set.
func Postgres(tb testing.TB, settings ...string) *PostgresServer {
	tb.Helper()
	s := newPostgres(tb, settings)
	s.launchPostgres()
	return s
}

// PostgresTLS is like Postgres, but its server also supports TLS, with the
// server certificate of certs. Members of the role "certified" need TLS and a
// client certificate from the same authority.
func PostgresTLS(tb testing.TB, certs *Certificates, settings ...string) *PostgresServer {
	tb.Helper()
	s := newPostgres(tb, append([]string{"ssl=on", "ssl_ca_file=ca.crt"}, settings...))
	account := serverAccount(tb)
	rules, err := os.ReadFile(filepath.Join(s.Dir, "pg_hba.conf"))
	if err == nil {
		first := "hostssl all +certified all trust clientcert=verify-ca\nhostnossl all +certified all reject\n"
		err = account.writeFile(filepath.Join(s.Dir, "pg_hba.conf"), append([]byte(first), rules...))
	}
	if err != nil {
		tb.Fatal(err)
	}
	for from, to := range map[string]string{certs.CAFile: "ca.crt", certs.ServerCertFile: "server.crt", certs.ServerKeyFile: "server.key"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = account.writeFile(filepath.Join(s.Dir, to), text)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	s.launchPostgres()
	return s
}

// PostgresReplica starts a read replica of a running server.
func PostgresReplica(tb testing.TB, primary *PostgresServer) *PostgresServer {
	tb.Helper()
	account := serverAccount(tb)
	dir := account.tempDir(tb)
	data := filepath.Join(dir, "data")
	_, port, _ := net.SplitHostPort(primary.Addr)
	account.run(tb, postgresBinary(tb, "pg_basebackup"), "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-D", data, "-R", "-c", "fast")
	s := preparePostgres(tb, dir, data, nil)
	s.launchPostgres()
	return s
}

func newPostgres(tb testing.TB, settings []string) *PostgresServer {
	tb.Helper()
	account := serverAccount(tb)
	dir := account.tempDir(tb)
	data := filepath.Join(dir, "data")
	account.run(tb, "cp", "-a", postgresTemplate(tb), data)
	return preparePostgres(tb, dir, data, settings)
}

// preparePostgres makes a server without starting it.
func preparePostgres(tb testing.TB, dir, data string, settings []string) *PostgresServer {
	tb.Helper()
	port := freePort(tb)
	argv := serverAccount(tb).command(postgresBinary(tb, "postgres"), "-D", data)
	defaults := []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "unix_socket_directories=" + dir,
		"fsync=off", "full_page_writes=off", "max_connections=500", "autovacuum=off", "shared_buffers=16MB",
		// Use files in the data directory and not in /dev/shm, where a kill
		// would leave them.
		"dynamic_shared_memory_type=mmap",
	}
	for _, setting := range append(defaults, settings...) {
		argv = append(argv, "-c", setting)
	}
	s := &PostgresServer{Dir: data}
	s.Server = Server{
		tb:    tb,
		name:  "postgres",
		Addr:  fmt.Sprintf("127.0.0.1:%d", port),
		log:   filepath.Join(tb.TempDir(), "log"),
		argv:  argv,
		ready: s.ping,
	}
	return s
}

func (s *PostgresServer) launchPostgres() {
	s.tb.Helper()
	s.launch()
	s.tb.Cleanup(s.Kill) // runs before the cleanup of launch, which knows only one process
}

// URL returns a connection string: scheme://postgres@host:port/postgres.
func (s *PostgresServer) URL(scheme string) string {
	return fmt.Sprintf("%s://postgres@%s/postgres", scheme, s.Addr)
}

// Kill ends all processes of the server by SIGKILL, like a memory failure of
// the machine, and returns when they are gone.
//
// The first process is stopped and killed last. It starts no other process in
// the meantime, and no other process sees its end. A process that sees the end
// of the first process frees its locks gracefully, and a client whose process
// has not been killed yet may be granted them.
func (s *PostgresServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	segment := s.segment()
	s.Server.mu.Lock()
	_ = s.proc.freeze() // an error means that the process has ended
	s.Server.mu.Unlock()
	children := s.children()
	for _, pid := range children {
		signalProcess(pid, syscall.SIGKILL)
	}
	s.Server.Kill()
	s.frozen = nil
	Eventually(s.tb, func() bool { return !slices.ContainsFunc(children, isPostgres) }, "the server's processes end")
	if segment != "" {
		exec.Command("ipcrm", "-m", segment).Run() // an error means that there is no segment any more
	}
}

// segment returns the number of the System V shared memory segment by which the
// running server prevents a second one, or "". The system has few segments, and
// a killed server leaves its segment behind.
func (s *PostgresServer) segment() string {
	s.Server.mu.Lock()
	ended := s.proc.ended()
	s.Server.mu.Unlock()
	if ended {
		return ""
	}
	// the file is empty while the server starts
	text, _ := os.ReadFile(filepath.Join(s.Dir, "postmaster.pid"))
	if lines := strings.Split(string(text), "\n"); len(lines) > 6 {
		if words := strings.Fields(lines[6]); len(words) == 2 {
			return words[1] // the number is after the key
		}
	}
	return ""
}

// Restart is Kill and Start.
func (s *PostgresServer) Restart() {
	s.tb.Helper()
	s.Kill()
	s.Start()
}

// Freeze stops all processes of the server.
func (s *PostgresServer) Freeze() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Server.Freeze() // the first process starts no more of them
	for _, pid := range s.children() {
		if signalProcess(pid, sigStop) == nil {
			s.frozen = append(s.frozen, pid)
		}
	}
	Eventually(s.tb, func() bool {
		return !slices.ContainsFunc(s.frozen, func(pid int) bool { return stateLetter(pid) == 'R' })
	}, "the server's processes have stopped")
}

// Thaw lets a frozen server continue.
func (s *PostgresServer) Thaw() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range s.frozen {
		signalProcess(pid, sigCont)
	}
	s.frozen = nil
	s.Server.Thaw()
}

// children returns the processes that the server has started.
func (s *PostgresServer) children() []int {
	return childPids(s.Pid())
}

// childPids returns the processes that a process has started, if the system can
// list them.
func childPids(pid int) []int {
	// cannot fail, because the pattern is not malformed
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var pids []int
	for _, thread := range threads {
		text, _ := os.ReadFile(thread) // the text is empty for a process that has ended
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// isPostgres reports whether a process exists that belongs to a server. Another
// process may now have the number.
func isPostgres(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.HasPrefix(string(name), "postgres") && stateLetter(pid) != 'Z'
}

// stateLetter returns the state of a process as ps shows it, or 0.
func stateLetter(pid int) byte {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	if _, rest, ok := strings.Cut(string(text), ") "); ok && rest != "" {
		return rest[0]
	}
	return 0
}

// ping connects as a client does.
func (s *PostgresServer) ping(ctx context.Context) error {
	conn, err := dial(ctx, s.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	body := binary.BigEndian.AppendUint32(nil, 3<<16) // version 3.0 of the protocol
	body = append(body, "user\x00postgres\x00database\x00postgres\x00\x00"...)
	hello := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	if _, err := conn.Write(append(hello, body...)); err != nil {
		return err
	}
	for {
		var head [5]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		text := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(conn, text); err != nil {
			return err
		}
		switch head[0] {
		case 'E':
			return fmt.Errorf("%q", text)
		case 'Z':
			return nil
		}
	}
}

// PoolerServer is a private pgbouncer.
type PoolerServer struct{ Server }

// PgBouncer starts a pgbouncer in front of a server, in the given pool_mode. It
// accepts every user as the superuser.
func PgBouncer(tb testing.TB, pg *PostgresServer, mode string) *PoolerServer {
	tb.Helper()
	binary := need(tb, "pgbouncer", "pgbouncer")
	account := serverAccount(tb)
	dir := account.tempDir(tb)
	port := freePort(tb)
	host, pgPort, _ := net.SplitHostPort(pg.Addr)
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\n"+
		"unix_socket_dir=\nauth_type=any\npool_mode=%s\nmax_client_conn=200\ndefault_pool_size=40\n", host, pgPort, port, mode)
	if err := account.writeFile(config, []byte(text)); err != nil {
		tb.Fatal(err)
	}
	s := &PoolerServer{}
	s.Server = Server{
		tb:    tb,
		name:  "pgbouncer",
		Addr:  fmt.Sprintf("127.0.0.1:%d", port),
		log:   filepath.Join(tb.TempDir(), "log"),
		argv:  account.command(binary, config),
		ready: func(ctx context.Context) error { return (&PostgresServer{Server: Server{Addr: s.Addr}}).ping(ctx) },
	}
	s.launch()
	return s
}

// account is the user account of servers that refuse to run as root.
type account struct{ uid, gid int }

// serverAccount returns the account of this process, or another account if this
// process runs as root.
func serverAccount(tb testing.TB) account {
	tb.Helper()
	if os.Getuid() != 0 {
		return account{os.Getuid(), os.Getgid()}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			tb.Fatal(err)
		}
		return account{uid, gid}
	}
	tb.Fatal("there is no user postgres or nobody to run a server")
	return account{}
}

// command returns a command line that runs as the account, and that dies with
// its parent process.
func (a account) command(argv ...string) []string {
	if a.uid == os.Getuid() {
		return argv
	}
	return append([]string{"setpriv", "--reuid", strconv.Itoa(a.uid), "--regid", strconv.Itoa(a.gid), "--clear-groups",
		"--pdeathsig", "KILL", "--"}, argv...)
}

func (a account) run(tb testing.TB, argv ...string) {
	tb.Helper()
	argv = a.command(argv...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// tempDir makes a directory that the account owns and removes it at the end of
// the test.
func (a account) tempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := serverDir(tb, os.TempDir(), "dsync-pgdata-")
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Chown(dir, a.uid, a.gid); err != nil {
		tb.Fatal(err)
	}
	return dir
}

func (a account) writeFile(path string, text []byte) error {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	return os.Chown(path, a.uid, a.gid)
}

// postgresBinary returns the path of a program of the newest installed
// PostgreSQL.
func postgresBinary(tb testing.TB, name string) string {
	tb.Helper()
	if path := provided(name); path != "" {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	if len(found) > 0 {
		return slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
	}
	return need(tb, name, "postgresql")
}

// postgresTemplate returns a data directory to copy. It is made once and kept
// for later runs, because making it takes most of the time that a start takes.
func postgresTemplate(tb testing.TB) string {
	tb.Helper()
	initdb := postgresBinary(tb, "initdb")
	account := serverAccount(tb)
	version, err := exec.Command(initdb, "--version").Output()
	if err != nil {
		tb.Fatal(err)
	}
	words := strings.Fields(string(version))
	name := fmt.Sprintf("dsync-postgres-%s-%d", words[2], account.uid)
	template := filepath.Join(os.TempDir(), name)
	if info, err := os.Lstat(template); err == nil {
		if !info.IsDir() || ownerOf(info) != account.uid {
			tb.Fatalf("%s is in the way", template)
		}
		return template
	}
	fresh := filepath.Join(account.tempDir(tb), "data")
	account.run(tb, initdb, "-D", fresh, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1")
	rules := "local all all trust\nlocal replication all trust\nhost replication all 127.0.0.1/32 trust\n" +
		"host all +secret 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
	if err := account.writeFile(filepath.Join(fresh, "pg_hba.conf"), []byte(rules)); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(fresh, template); err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		tb.Fatal(err)
	}
	return template
}
