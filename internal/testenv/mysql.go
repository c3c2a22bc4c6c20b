package testenv

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"testing"
)

// MySQLServer is a private MariaDB, which speaks the MySQL protocol. It accepts
// all users and has only its system databases.
type MySQLServer struct{ Server }

// MySQL starts a MariaDB server with the given settings, as in
// "innodb-lock-wait-timeout=5". It does not wait for the disk unless a setting
// enables that. If MariaDB is not installed, the test is skipped, or fails if
// CI is set.
func MySQL(tb testing.TB, settings ...string) *MySQLServer {
	tb.Helper()
	return startMySQL(tb, nil, settings)
}

func startMySQL(tb testing.TB, program, settings []string) *MySQLServer {
	tb.Helper()
	binary := need(tb, "mariadbd", "mariadb-server-core")
	account := serverAccount(tb)
	dir := account.tempDir(tb) // use a short path, because the path of a socket must be short
	port := freePort(tb)
	argv := append(program, account.command(binary, "--no-defaults", "--datadir="+dir, "--socket="+filepath.Join(dir, "socket"))...)
	defaults := []string{
		"bind-address=127.0.0.1", "port=" + strconv.Itoa(port), "skip-name-resolve",
		"skip-grant-tables", // so that an empty directory is all that the server needs
		"innodb-flush-log-at-trx-commit=2", "debug-no-sync", "innodb-log-file-size=4M", "innodb-buffer-pool-size=16M",
	}
	for _, setting := range append(defaults, settings...) {
		argv = append(argv, "--"+setting)
	}
	s := &MySQLServer{}
	s.Server = Server{
		tb:    tb,
		name:  "mariadbd",
		Addr:  fmt.Sprintf("127.0.0.1:%d", port),
		log:   filepath.Join(tb.TempDir(), "log"),
		argv:  argv,
		ready: s.ping,
	}
	s.launch()
	return s
}

// ping waits for the server's greeting: a packet of version 10 of the protocol.
func (s *MySQLServer) ping(ctx context.Context) error {
	conn, err := dial(ctx, s.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	if version := head[4]; version != 10 {
		return fmt.Errorf("the first packet begins with %d", version)
	}
	return nil
}
