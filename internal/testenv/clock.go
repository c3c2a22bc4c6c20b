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

// RedisClock is [Redis] with a clock that can jump. It takes a C compiler; where there is none, the test is skipped, or fails if CI is set.
func RedisClock(tb testing.TB, args ...string) (*RedisServer, *Clock) {
	tb.Helper()
	dir := tb.TempDir()
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
	c := &Clock{tb: tb, file: file}
	c.Set(0)
	return startRedisAs(tb, []string{"env", "LD_PRELOAD=" + shim, "DSYNC_TEST_CLOCK=" + file.Name()}, args), c
}
