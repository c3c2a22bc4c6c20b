package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// tableOf is the directory, below the one of all tables, for what was measured on servers with a storage.
func tableOf(dir string, s testenv.Storage) string {
	if s.Disk {
		return dir
	}
	return filepath.Join(dir, "memory")
}

// flushTime is the median time of a flush of 4 KiB that were appended to a file in the directory of the servers.
func flushTime() (time.Duration, error) {
	f, err := os.CreateTemp("", "dsync-flush-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var times []time.Duration
	for range 200 {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	return percentile(times, 0.5).Round(time.Microsecond), nil
}

// aboutStorage says what the servers did with what they wrote.
func (r *Results) aboutStorage() string {
	if !r.size.Storage.Disk {
		return "The servers keep nothing on disk."
	}
	if r.flush == 0 { // see Flushes
		return `The servers flush what they write as their packages have it: etcd, ZooKeeper and PostgreSQL before they answer, Redis once a second (appendfsync everysec,
with appendonly yes). A flush takes as long as the column says, and does nothing else: no other work of a disk is in the figures.`
	}
	return fmt.Sprintf(`The servers keep what they write on a disk, and flush it as
their packages have it: etcd, ZooKeeper and PostgreSQL before they answer, Redis once a second (appendfsync everysec, as in its redis.conf, but with
appendonly yes, without which it makes snapshots alone, minutes apart). A flush of 4 KiB took this disk %v, at the median.`, r.flush)
}
