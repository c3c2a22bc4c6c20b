package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/sqllock"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	atMost  = 10 * time.Second
	clients = 3 // of each library
)

// TestFleet runs jobs in Java processes with ShedLock and in clients of dsync
// on the same table. No job runs in two places at the same time, or twice in
// the first four fifths of a period. A lock is kept for nine tenths of it.
func TestFleet(t *testing.T) {
	command := javaCommand(t)
	s := mariadb(t)
	db := s.dial(t, nil)
	run(t, db, "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))")
	run(t, db, "CREATE TABLE runs (name VARCHAR(64), period BIGINT, who VARCHAR(64))")
	run(t, db, "CREATE TABLE busy (name VARCHAR(64) PRIMARY KEY)")
	crash := testenv.Briefly(0, 20)
	periods := []time.Duration{200 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond, time.Second}
	addr, _, _ := strings.Cut(strings.TrimPrefix(s.url, "mysql://root@"), "/")
	args := []string{"jdbc:mariadb://" + addr + "/locks?user=root&maxPoolSize=8", fmt.Sprint(crash)}
	for _, p := range periods {
		args = append(args, fmt.Sprint(p.Milliseconds()))
	}
	ctx, stop := context.WithCancel(t.Context())
	var fleet, ready sync.WaitGroup
	for i := range clients {
		fleet.Go(func() { jobs(ctx, t, s, fmt.Sprintf("go %d", i), crash, periods) })
		ready.Add(1)
		fleet.Go(func() {
			began := sync.OnceFunc(ready.Done)
			defer began()
			if err := java(ctx, append(command, args...), began); err != nil {
				t.Errorf("a Java process: %v", err)
			}
		})
	}
	ready.Wait()
	time.Sleep(testenv.Briefly(5*time.Second, time.Minute)) // the jobs run
	stop()
	fleet.Wait()
	report(t, db)
}

// java runs a Java process until ctx ends. It calls ready when the jobs begin.
func java(ctx context.Context, command []string, ready func()) error {
	cmd := exec.Command(command[0], command[1:]...)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { in.Close() })()
	var wrong []error
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			ready()
		} else {
			wrong = append(wrong, errors.New(lines.Text()))
		}
	}
	return errors.Join(append(wrong, cmd.Wait())...)
}

// jobs runs the jobs in a client of dsync until ctx ends.
func jobs(ctx context.Context, t *testing.T, s *server, who string, crash int, periods []time.Duration) {
	db := s.dial(t, nil)
	d, err := sqllock.NewShedLock(t.Context(), db, s.dialect, nil)
	if err != nil {
		t.Error(err)
		return
	}
	client, err := dsync.New(d, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close(context.Background())
	var all sync.WaitGroup
	for _, p := range periods {
		all.Go(func() {
			for name := fmt.Sprintf("job%d", p.Milliseconds()); ; {
				time.Sleep(p - time.Duration(time.Now().UnixNano())%p) // the schedule
				if ctx.Err() != nil {
					return
				}
				lease, err := client.TryLock(t.Context(), name, dsync.ExpireAfter(atMost), dsync.HoldAtLeast(p*9/10))
				if errors.Is(err, dsync.ErrLocked) {
					continue
				}
				if err == nil {
					err = job(t.Context(), db, name, p, who)
				}
				if err == nil && (crash == 0 || rand.N(crash) > 0) {
					err = lease.Unlock(t.Context())
				}
				if err != nil {
					t.Errorf("%s in %s: %v", name, who, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// job fails if another process runs the job. It records the run if that is in
// the first four fifths of a period of the server.
func job(ctx context.Context, db *sql.DB, name string, period time.Duration, who string) error {
	if _, err := db.ExecContext(ctx, "INSERT INTO busy VALUES (?)", name); err != nil {
		return err
	}
	ms := period.Milliseconds()
	_, err := db.ExecContext(ctx, "INSERT INTO runs SELECT ?, t DIV ?, ? FROM (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS t) c WHERE t % ? < ?", name, ms, who, ms, ms*8/10)
	if err != nil {
		return err
	}
	time.Sleep(rand.N(period / 2)) // the work
	_, err = db.ExecContext(ctx, "DELETE FROM busy WHERE name = ?", name)
	return err
}

// report checks the records.
func report(t *testing.T, db *sql.DB) {
	t.Helper()
	count := func(query string) (n int) {
		if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count("SELECT count(*) FROM (SELECT 1 FROM runs GROUP BY name, period HAVING count(*) > 1) twice"); n > 0 {
		t.Errorf("%d times a job ran twice in a period", n)
	}
	byGo, byJava := count("SELECT count(*) FROM runs WHERE who LIKE 'go%'"), count("SELECT count(*) FROM runs WHERE who LIKE 'java%'")
	t.Logf("%d runs in Go, %d in Java", byGo, byJava)
	if byGo == 0 || byJava == 0 {
		t.Error("one of the libraries ran no job")
	}
}

// javaCommand returns the command line of the Java program. Without Java the
// test is skipped, or fails if CI is set.
func javaCommand(t *testing.T) []string {
	t.Helper()
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil && os.Getenv("CI") == "" {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "classpath")
	build := func(name string, args ...string) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = "java"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	build("mvn", "-q", "-B", "-Dmdep.outputFile="+file, "dependency:build-classpath")
	libraries, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	build("javac", "-d", dir, "-cp", string(libraries), "Fleet.java")
	return []string{"java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", string(libraries) + string(filepath.ListSeparator) + dir, "Fleet"}
}
