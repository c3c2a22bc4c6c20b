package testenv

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed preload/clock.c
var clockShim []byte

// Clock is the wall clock of a server, which can jump. Its other clocks go on as they do.
type Clock struct {
	tb   testing.TB
	file *os.File
}

// Set puts the clock off the true time by d, from one instant to the next. It stays so when the server is started again.
func (c *Clock) Set(d time.Duration) {
	c.tb.Helper()
	if _, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d)), 0); err != nil {
		c.tb.Fatal(err)
	}
}

// newClock makes a clock for a server, and the beginning of the command line of one that goes by it. What the server needs for that is
// in dir. It takes a C compiler; where there is none, the test is skipped, or fails if CI is set.
func newClock(tb testing.TB, dir string) (c *Clock, program []string) {
	tb.Helper()
	source, shim := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockShim, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command(need(tb, "cc", "gcc"), "-O1", "-Wall", "-shared", "-fPIC", "-o", shim, source).CombinedOutput(); err != nil {
		tb.Fatalf("cc: %v\n%s", err, out)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { file.Close() })
	c = &Clock{tb: tb, file: file}
	c.Set(0)
	return c, []string{"env", "LD_PRELOAD=" + shim, "DSYNC_TEST_CLOCK=" + file.Name()}
}

// RedisClock is [Redis] with a clock that can jump.
func RedisClock(tb testing.TB, args ...string) (*RedisServer, *Clock) {
	tb.Helper()
	c, program := newClock(tb, tb.TempDir())
	return redisAt(tb, host{loopback.ip, program}, args), c
}

// PostgresClock is [Postgres] with a clock that can jump.
func PostgresClock(tb testing.TB, settings ...string) (*PostgresServer, *Clock) {
	tb.Helper()
	c, program := newClock(tb, serverAccount(tb).tempDir(tb))
	s := newPostgres(tb, settings)
	s.argv = append(program, s.argv...)
	s.launchPostgres()
	return s, c
}
