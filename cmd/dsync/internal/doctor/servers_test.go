package doctor

import (
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gozk "github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"

	"github.com/go-dsync/dsync/cmd/dsync/internal/clitest"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestDoctorOnTable creates the table with the statement that doctor prints.
func TestDoctorOnTable(t *testing.T) {
	t.Parallel()
	pg, my := testenv.Postgres(t), testenv.MySQL(t)
	for _, s := range []struct{ driver, source, url string }{
		{"pgx", pg.URL("postgres") + "?sslmode=disable", "pgtable://postgres@" + pg.Addr + "/postgres?sslmode=disable"},
		{"mysql", "root@tcp(" + my.Addr + ")/test", "mysql://root@" + my.Addr + "/test"},
	} {
		if s.driver == "mysql" {
			execute(t, s.driver, "root@tcp("+my.Addr+")/", "CREATE DATABASE IF NOT EXISTS test")
		}
		e := doctor(t, true, s.url)
		e.want("table", fault, "there is no table dsync_locks", "CREATE TABLE dsync_locks (")
		execute(t, s.driver, s.source, e.cureOf("table"))
		e = doctor(t, false, s.url)
		e.want("table", ok, "", "")
		e.want("lock", ok, "", "")
	}
	execute(t, "pgx", pg.URL("postgres")+"?sslmode=disable", "CREATE ROLE reader LOGIN; GRANT SELECT ON dsync_locks TO reader")
	doctor(t, true, "pgtable://reader@"+pg.Addr+"/postgres?sslmode=disable").want("lock", fault, "", "GRANT SELECT, INSERT, UPDATE, DELETE")
}

func (e examined) cureOf(check string) string {
	i := slices.IndexFunc(e.Findings, func(f finding) bool { return f.Check == check })
	return e.Findings[i].Cure
}

// execute executes a statement.
func execute(t *testing.T, name, source, statement string) {
	t.Helper()
	db, err := sql.Open(name, source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestDoctorOnPostgres(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t, "fsync=on")
	admin, err := pgx.Connect(t.Context(), pg.URL("postgres")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	do := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	password := testenv.Password()
	for line := range strings.Lines(strings.ReplaceAll(drivertest.Recipe(t, "**PostgreSQL**"), "'...'", "'"+password+"'")) {
		do(line)
	}
	url := "pglock://locker:" + password + "@" + pg.Addr + "/locks?sslmode=disable"
	e := doctor(t, false, url)
	e.no(warning)
	for _, check := range []string{"reach", "version", "persistence", "session limit", "clock", "rights", "open", "lock"} {
		e.want(check, ok, "", "")
	}
	doctor(t, false, url+"&force_unlock=true").want("rights", warning, "sessions of others", "GRANT pg_signal_backend TO locker")
	var version int
	if err := admin.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 150000 {
		e.want("rights", note, "deadlock_timeout", "GRANT SET ON PARAMETER deadlock_timeout TO locker")
		do("GRANT SET ON PARAMETER deadlock_timeout TO locker")
	}
	doctor(t, false, url).no(note)
	inFile := strings.Replace(url, ":"+password, "", 1) + "&password_file=" + passwordFile(t, password)
	doctor(t, false, inFile).want("rights", ok, "", "")
	doctor(t, true, url+"&ttl=10000h").want("session limit", fault, "TTL", "ttl=")

	do("ALTER ROLE locker CONNECTION LIMIT 2")
	doctor(t, true, url).want("session limit", fault, "role locker: 1 of 2 connections", "ALTER ROLE locker CONNECTION LIMIT")
	do("ALTER ROLE locker CONNECTION LIMIT 0")
	doctor(t, true, url).want("session limit", fault, "53300", "ALTER ROLE locker CONNECTION LIMIT")
	do("ALTER ROLE locker CONNECTION LIMIT -1")
	do("ALTER ROLE locker SET default_transaction_read_only = on")
	doctor(t, false, url).no(note) // the driver locks, and its tokens rise
	do("ALTER ROLE locker RESET default_transaction_read_only")
	do("REVOKE CONNECT ON DATABASE locks FROM locker")
	doctor(t, true, url).want("rights", fault, "42501", "GRANT CONNECT ON DATABASE locks TO locker")
	do("GRANT CONNECT ON DATABASE locks TO locker")
	inside, err := pgx.Connect(t.Context(), "postgres://postgres@"+pg.Addr+"/locks?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close(t.Context())
	if _, err := inside.Exec(t.Context(), "REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) FROM PUBLIC"); err != nil {
		t.Fatal(err)
	}
	doctor(t, true, url).want("rights", fault, "pg_try_advisory_lock", "GRANT EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock TO locker")
}

func TestDoctorOnPooler(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	url := "pglock://postgres@" + testenv.PgBouncer(t, pg, "transaction").Addr + "/postgres?sslmode=disable"
	doctor(t, true, url).want("pooler", fault, "transaction mode", "connect to the server itself")
	doctor(t, true, url+"&pooler=session").want("pooler", fault, "transaction mode", "connect to the server itself")
	url = "pglock://postgres@" + testenv.PgBouncer(t, pg, "session").Addr + "/postgres?sslmode=disable"
	doctor(t, true, url).want("pooler", fault, "refuses without pooler=session", "pooler=session")
	doctor(t, false, url+"&pooler=session").want("pooler", note, "session mode", "")
}

func TestDoctorOnStandby(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	primary := testenv.PostgresTLS(t, certs)
	replica := testenv.PostgresReplica(t, primary)
	doctor(t, true, replica.URL("pglock")+"?sslmode=disable").want("read-only", fault, "standby", "the address of the primary")
	e := doctor(t, false, primary.URL("pglock")+"?sslmode=verify-full&sslrootcert="+certs.CAFile)
	e.want("persistence", warning, "fsync=off", "fsync = on")
	e.want("TLS", ok, "encrypted", "")
	other := strings.Replace(primary.URL("pglock"), "127.0.0.1", "127.0.0.2", 1) // no certificate has it, and no server listens on it
	doctor(t, true, other+"?connect_timeout=5").want("reach", fault, "", "is the server running")
	doctor(t, true, primary.URL("pglock")+"?sslmode=verify-full&sslrootcert="+testenv.NewCertificates(t).CAFile).want("TLS", fault, "authority", "sslrootcert")
}

func TestDoctorOnEtcd(t *testing.T) {
	t.Parallel()
	s := testenv.Etcd(t)
	e := doctor(t, false, "etcd://"+s.Addr)
	e.no(warning)
	for _, check := range []string{"reach", "version", "rights", "open", "lock"} {
		e.want(check, ok, "", "")
	}
	e.want("members", note, "one server", "three servers")
	doctor(t, true, "etcd://"+s.Addr+"?ttl=1500ms").want("session limit", fault, "1.5s", "ttl=")

	password := testenv.Password()
	ctl := func(words ...string) {
		t.Helper()
		if out, err := exec.Command(s.Ctl, append([]string{"--endpoints", s.Addr}, words...)...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
	}
	for line := range strings.Lines(drivertest.Recipe(t, "**etcd**")) {
		ctl(strings.Fields(strings.ReplaceAll(line, "app:password", "app:"+password))[1:]...)
	}
	ctl("user", "add", "root:"+testenv.Password())
	ctl("user", "grant-role", "root", "root")
	ctl("auth", "enable")
	user := "etcd://app:" + password + "@" + s.Addr
	doctor(t, false, user+"/locks/").want("rights", ok, "locks/", "")
	inFile := "etcd://app@" + s.Addr + "/locks/?password_file="
	doctor(t, false, inFile+passwordFile(t, password)).want("rights", ok, "locks/", "")
	doctor(t, true, inFile+"/missing").want("URL", fault, "password_file: open /missing", "")
	doctor(t, true, user+"/other/").want("rights", fault, "read, write, delete", "grant-permission ROLE --prefix=true readwrite other/")
	doctor(t, true, strings.Replace(user, password, testenv.PasswordMark+"wrong", 1)+"/locks/").want("password", fault, "rejects this user", "the correct user")
}

// passwordFile returns the path of a file for the parameter password_file.
func passwordFile(t *testing.T, password string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDoctorOnZooKeeper(t *testing.T) {
	t.Parallel()
	s := testenv.ZooKeeper(t)
	app := "zk://app:" + testenv.Password() + "@" + s.Addr
	e := doctor(t, false, app+"/app")
	e.no(warning)
	for _, check := range []string{"reach", "version", "rights", "open", "lock"} {
		e.want(check, ok, "", "")
	}
	c, _, err := gozk.Connect([]string{s.Addr}, drivertest.HangGuard, gozk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	doctor(t, false, app+"/other/app").want("rights", ok, "c on /", "")
	for _, node := range []string{"/app", "/other"} {
		if there, _, err := c.Exists(node); there || err != nil {
			t.Errorf("%s was not there before, and is now (%v)", node, err)
		}
	}
	lease := clitest.Lock(t, clitest.Client(t, app+"/app"), "x")
	doctor(t, false, app+"/app").want("rights", ok, "cdrwa on /app", "")
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	doctor(t, true, "zk://other:"+testenv.Password()+"@"+s.Addr+"/app").want("rights", fault, "on /app", "setAcl /app")
	doctor(t, true, app+"/app?ttl=2h").want("session limit", fault, "2h0m0s", "maxSessionTimeout")
}
