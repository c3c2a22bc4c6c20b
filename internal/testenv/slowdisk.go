package testenv

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

//go:embed slowdisk/slowdisk.c
var slowDiskSource []byte

// SlowDisk is a disk whose flushes (fsync, fdatasync) take a time that a test sets, for the servers of a [Storage]. Nothing is flushed: other
// work on the disk of the machine does not count, and a crash of the machine may cost what was written.
type SlowDisk struct {
	tb            testing.TB
	file          *os.File
	program, path string
}

// NewSlowDisk makes a disk whose flushes take no time. It takes Linux and a C compiler; where one of them is missing, the test
// is skipped, or fails if CI is set.
func NewSlowDisk(tb testing.TB) *SlowDisk {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skip("flushes are delayed by Linux alone")
	}
	dir, err := serverDir(tb, os.TempDir(), "dsync-slowdisk-") // the accounts of all servers can read it
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	source := filepath.Join(dir, "slowdisk.c")
	d := &SlowDisk{tb: tb, program: filepath.Join(dir, "slowdisk"), path: filepath.Join(dir, "late")}
	if err := os.WriteFile(source, slowDiskSource, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command(need(tb, "cc", "gcc"), "-O1", "-Wall", "-o", d.program, source).CombinedOutput(); err != nil {
		tb.Fatalf("cc: %v\n%s", err, out)
	}
	if d.file, err = os.Create(d.path); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { d.file.Close() })
	d.Set(0)
	return d
}

// Set has each flush that begins from now on take so long.
func (d *SlowDisk) Set(flush time.Duration) {
	d.tb.Helper()
	if _, err := d.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(flush)), 0); err != nil {
		d.tb.Fatal(err)
	}
}

// under is the beginning of the command line of a server with the disk, if there is one.
func (d *SlowDisk) under() []string {
	if d == nil {
		return nil
	}
	return []string{d.program, d.path}
}
