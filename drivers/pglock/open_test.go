package pglock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/pglock"
	"github.com/go-dsync/dsync/internal/testenv"
)

func testURL(t *testing.T, pg *testenv.PostgresServer) {
	d, c, err := driver.Open(t.Context(), pg.URL("pglock")+"?ttl=5s&tokens=fast&max_locks=7&key=number&sslmode=disable&work_mem=1MB")
	if err != nil {
		t.Fatal(err)
	}
	defer closeDriver(t, d)
	if got := d.Info().Fencing; got != driver.Volatile {
		t.Errorf("Fencing with tokens=fast: got %v, want Volatile", got)
	}
	mustRelease(t, mustAcquire(t, d, request("42", c.TTL)))
	plain, _, err := driver.Open(t.Context(), pg.URL("pglock")+"?fenced=false")
	if err != nil {
		t.Fatal(err)
	}
	defer closeDriver(t, plain)
	l := mustAcquire(t, plain, try("a"))
	if first, n := l.Tokens(); first != 0 || n != 0 || plain.Info().Fencing != driver.None {
		t.Errorf("fenced=false: got tokens %d, %d and %v, want none", first, n, plain.Info().Fencing)
	}
	mustRelease(t, l)
}

// testTTLOfTheProgramIsThatOfTheSession counts the connections of a client that
// has used the TTL of its Options.
func testTTLOfTheProgramIsThatOfTheSession(t *testing.T, pg *testenv.PostgresServer) {
	c, err := dsync.Open(t.Context(), pg.URL("pglock")+"?application_name=counted", &dsync.Options{TTL: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	l, err := c.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock(t.Context())
	const sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%counted%'"
	if n := value[int](t, connect(t, pg), sessions); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// testRefusalsNameNoPassword opens invalid URLs.
func testRefusalsNameNoPassword(t *testing.T, pg *testenv.PostgresServer) {
	conn, right := connect(t, pg), testenv.Password()
	if _, err := conn.Exec(t.Context(), "CREATE ROLE secret; CREATE ROLE alice LOGIN PASSWORD '"+right+"' IN ROLE secret"); err != nil {
		t.Fatal(err)
	}
	const canary = testenv.PasswordMark
	for _, test := range []struct{ url, want string }{
		{"pglock://alice:" + canary + "@" + pg.Addr + "/postgres", "password authentication failed"},
		{"pglock://alice@" + pg.Addr + "/postgres?password=" + canary, "password authentication failed"},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/missing", `database "missing" does not exist`},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/a/b", "name of a database"},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/postgres?tokns=fast", `"tokns"`},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/postgres?tokens=cheap", "tokens"},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/postgres?max_locks=0", "max_locks"},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/postgres?sslmode=often", "sslmode"},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/postgres?sslmode=require", "TLS"},
		{"pglock://postgres:" + canary + "@127.0.0.1:1/postgres", "connect"},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/postgres?ttl=1ms", "TTL"},
		{"pglock://postgres@" + pg.Addr + "/postgres?connect_timeout=" + canary, "the value of connect_timeout"},
		{"pglock://postgres@" + pg.Addr + "/postgres?options=-c%20work_mem%3D" + canary, "invalid value for parameter"},
		{"pglock://postgres@" + pg.Addr + "/postgres?options=--" + canary, "failed to connect"},
		{"pglock://postgres:" + canary + "@" + pg.Addr + "/postgres?synchronous_commit=off", "synchronous_commit"},
	} {
		d, _, err := driver.Open(t.Context(), test.url)
		if err == nil {
			closeDriver(t, d)
			t.Errorf("%s: opened", strings.ReplaceAll(test.url, canary, "..."))
			continue
		}
		if got := err.Error(); !strings.Contains(got, test.want) || strings.Contains(got, canary) {
			t.Errorf("error: got %q, want an error with %q and without the password", got, test.want)
		} else if strings.Contains(got, "\n") || !strings.HasPrefix(got, "pglock") {
			t.Errorf("error: got %q, want one line that begins with the name of the driver", got)
		}
		if failed := (*pgconn.ConnectError)(nil); errors.As(err, &failed) {
			t.Errorf("error %q contains the library's configuration", err)
		}
	}
	d, _, err := driver.Open(t.Context(), "pglock://alice:"+right+"@"+pg.Addr+"/postgres")
	if err != nil {
		t.Fatal(err)
	}
	closeDriver(t, d)
	if _, _, err := driver.Open(t.Context(), "pglock://alice:"+testenv.Password()+"@"+pg.Addr+"/postgres"); !errors.Is(err, os.ErrPermission) {
		t.Errorf("wrong password: got %v, want ErrPermission", err)
	}
}

// testPasswordChanges changes a password between two connections of a client.
func testPasswordChanges(t *testing.T, pg *testenv.PostgresServer) {
	conn, file := connect(t, pg), filepath.Join(t.TempDir(), "password")
	change := func(statement string) {
		t.Helper()
		password := testenv.Password()
		if _, err := conn.Exec(t.Context(), statement+" PASSWORD '"+password+"'"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change("CREATE ROLE bob LOGIN IN ROLE secret")
	c, err := dsync.Open(t.Context(), "pglock://bob@"+pg.Addr+"/postgres?password_file="+file, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	other, err := dsync.Open(t.Context(), pg.URL("pglock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	held, err := other.Lock(t.Context(), "rotated")
	if err != nil {
		t.Fatal(err)
	}
	change("ALTER ROLE bob")
	granted := make(chan error, 1)
	go func() {
		_, err := c.Lock(t.Context(), "rotated") // which needs another connection
		granted <- err
	}()
	const sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bob' AND wait_event_type = 'Lock'"
	testenv.Eventually(t, func() bool { return len(granted) > 0 || value[int](t, conn, sessions) > 0 }, "bob waits")
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
}

// testPingOfARefusedClient changes the password of a client without its
// knowledge.
func testPingOfARefusedClient(t *testing.T, pg *testenv.PostgresServer) {
	conn, password := connect(t, pg), testenv.Password()
	change := func(statement, password string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement+" PASSWORD '"+password+"'"); err != nil {
			t.Fatal(err)
		}
	}
	change("CREATE ROLE carol LOGIN IN ROLE secret", password)
	c, err := dsync.Open(t.Context(), "pglock://carol:"+password+"@"+pg.Addr+"/postgres", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	change("ALTER ROLE carol", testenv.Password())
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("Ping over the earlier connection: %v", err)
	}
	terminate := "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'carol'"
	if _, err := conn.Exec(t.Context(), terminate); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return errors.Is(c.Ping(t.Context()), fs.ErrPermission) }, "Ping fails")
	change("ALTER ROLE carol", password)
	testenv.Eventually(t, func() bool { return c.Ping(t.Context()) == nil }, "Ping succeeds")

	held, err := dsync.Open(t.Context(), pg.URL("pglock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close(context.Background())
	if _, err := held.Lock(t.Context(), "taken"); err != nil {
		t.Fatal(err)
	}
	change("ALTER ROLE carol", testenv.Password())
	if _, err := c.Lock(t.Context(), "taken"); !errors.Is(err, fs.ErrPermission) { // needs another connection
		t.Errorf("Lock of a name that is taken: got %v, want fs.ErrPermission", err)
	}
	if err := c.Ping(t.Context()); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Ping while an earlier connection exists: got %v, want fs.ErrPermission", err)
	}
}

func TestPoolers(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	for _, test := range []struct {
		mode  string
		allow bool
		ok    bool
	}{
		{"session", false, false},
		{"session", true, true},
		{"transaction", false, false},
		{"transaction", true, false},
		{"statement", true, false},
	} {
		name := test.mode
		if test.allow {
			name += " allowed"
		}
		t.Run(name, func(t *testing.T) {
			pooler := testenv.PgBouncer(t, pg, test.mode)
			config, err := pgx.ParseConfig("postgres://postgres@" + pooler.Addr + "/postgres?sslmode=disable")
			if err != nil {
				t.Fatal(err)
			}
			d, err := pglock.New(t.Context(), config, &pglock.Options{SessionPooler: test.allow})
			if !test.ok {
				if err == nil {
					closeDriver(t, d)
					t.Fatal("opened")
				}
				if !errors.Is(err, pglock.ErrPooler) && test.mode != "statement" {
					t.Errorf("got %v, want ErrPooler", err)
				}
				if test.allow && test.mode == "transaction" && !strings.Contains(err.Error(), "transaction mode") {
					t.Errorf("got %v, want an error that explains it", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer closeDriver(t, d)
			direct := newDriver(t, pg.Addr, nil)
			l := mustAcquire(t, d, try("a"))
			if _, err := direct.Acquire(t.Context(), try("a")); !errors.Is(err, driver.ErrLocked) {
				t.Errorf("Acquire past the pooler: got %v, want ErrLocked", err)
			}
			granted := make(chan driver.Lease)
			go func() { granted <- mustAcquire(t, direct, request("a", longTTL)) }()
			conn := connect(t, pg)
			testenv.Eventually(t, func() bool { return value[int](t, conn, advisoryLocks+" AND NOT granted") == 1 }, "the client waits")
			go func() { granted <- mustAcquire(t, d, request("a", longTTL)) }()
			mustRelease(t, l)
			mustRelease(t, <-granted)
			mustRelease(t, <-granted)
		})
	}
}

func TestReplicaIsRefused(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	replica := testenv.PostgresReplica(t, pg)
	_, _, err := driver.Open(t.Context(), replica.URL("pglock"))
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "replica") {
		t.Errorf("Open of a replica: got %v, want ErrUnsupported and an explanation", err)
	}
	d, _, err := driver.Open(t.Context(), "pglock://postgres@"+replica.Addr+","+pg.Addr+"/postgres")
	if err != nil {
		t.Fatalf("Open of a replica and its primary: %v", err)
	}
	mustRelease(t, mustAcquire(t, d, try("a")))
	closeDriver(t, d)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	pg := testenv.PostgresTLS(t, certs)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres")+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	d, _, err := driver.Open(t.Context(), pg.URL("pglock")+"?sslmode=verify-full&sslrootcert="+certs.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	l := mustAcquire(t, d, try("a"))
	if n := value[int](t, conn, "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name LIKE 'dsync#%'"); n == 0 {
		t.Error("no session of the driver uses TLS")
	}
	mustRelease(t, l)
	closeDriver(t, d)
	elsewhere := "pglock://postgres@" + testenv.Front(t, "127.0.0.2", pg.Addr, nil) + "/postgres"
	for what, url := range map[string]string{
		"unknown authority": pg.URL("pglock") + "?sslmode=verify-full&sslrootcert=" + testenv.NewCertificates(t).CAFile,
		"wrong host":        elsewhere + "?sslmode=verify-full&sslrootcert=" + certs.CAFile,
	} {
		var untrusted *tls.CertificateVerificationError
		if _, _, err := driver.Open(t.Context(), url); !errors.As(err, &untrusted) {
			t.Errorf("%s: got %v, want a tls.CertificateVerificationError", what, err)
		}
	}
	testClientCertificates(t, pg, certs)
	d, _, err = driver.Open(t.Context(), elsewhere+"?sslmode=verify-ca&sslrootcert="+certs.CAFile)
	if err != nil {
		t.Fatalf("verify-ca, under another host: %v", err)
	}
	closeDriver(t, d)
}

// testClientCertificates uses a role from which the server requires a client
// certificate.
func testClientCertificates(t *testing.T, pg *testenv.PostgresServer, certs *testenv.Certificates) {
	run(t, connect(t, pg), "CREATE ROLE certified; CREATE ROLE alice LOGIN IN ROLE certified")
	url := "pglock://alice@" + pg.Addr + "/postgres?sslrootcert=" + certs.CAFile
	files := func(c *testenv.Certificates) string {
		return "&sslcert=" + c.ClientCertFile + "&sslkey=" + c.ClientKeyFile
	}
	for _, test := range []struct {
		parameters string
		is         error
		want       string
	}{
		{"&sslmode=verify-full", os.ErrPermission, "requires a valid client certificate"},
		{"&sslmode=verify-full" + files(testenv.NewCertificates(t)), driver.ErrUnavailable, "failed to connect"}, // the server ends the connection,
		{"&sslmode=disable", os.ErrPermission, "no encryption"},
	} {
		_, _, err := driver.Open(t.Context(), url+test.parameters)
		if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %v with %q", test.parameters, err, test.is, test.want)
		}
	}
	d, _, err := driver.Open(t.Context(), url+"&sslmode=verify-full"+files(certs))
	if err != nil {
		t.Fatalf("with a client certificate: %v", err)
	}
	defer closeDriver(t, d)
	mustRelease(t, mustAcquire(t, d, try("b")))
}
