package pglock_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// roles are the functions that this test binary runs as another process; see
// testenv.Spawn.
var roles = map[string]func(){"dsync": dsyncRole, "psql": psqlRole, "crowd": crowdRole}

func dsyncRole() {
	d, _, err := driver.Open(context.Background(), os.Getenv("LOCK_URL"))
	if err != nil {
		panic(err)
	}
	testenv.Count(func() (func() error, error) {
		l, err := d.Acquire(context.Background(), request("orders/42", 30*time.Second))
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	})
}

// psqlRole locks the name as its documentation describes, in one session of
// psql.
func psqlRole() {
	psql := exec.Command("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", os.Getenv("PSQL_URL"))
	psql.Stderr = os.Stderr
	in, err := psql.StdinPipe()
	if err != nil {
		panic(err)
	}
	out, err := psql.StdoutPipe()
	if err != nil {
		panic(err)
	}
	if err := psql.Start(); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(out)
	run := func(statement string) error {
		if _, err := io.WriteString(in, statement+";\n\\echo done\n"); err != nil {
			return err
		}
		for lines.Scan() {
			if lines.Text() == "done" {
				return nil
			}
		}
		return fmt.Errorf("psql ended: %w", psql.Wait())
	}
	testenv.Count(func() (func() error, error) {
		err := run("select pg_advisory_lock(hashtextextended('orders/42', 0))")
		return func() error { return run("select pg_advisory_unlock(hashtextextended('orders/42', 0))") }, err
	})
}

// Four processes of each kind add 500 each.
func TestCounterBesidePsql(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := testenv.NewCounter(t)
	c.Spawn(4, "dsync", 500, 1, "LOCK_URL="+pg.URL("pglock")+"?sslmode=disable")
	c.Spawn(4, "psql", 500, 1, "PSQL_URL="+pg.URL("postgres"))
	c.Run()
}
