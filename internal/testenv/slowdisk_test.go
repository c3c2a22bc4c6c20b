package testenv_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// A program in C and one in Go, which calls the kernel itself.
func TestSlowDisk(t *testing.T) {
	slow := testenv.NewSlowDisk(t)
	storage := testenv.Storage{Slow: slow}
	redis := storage.Redis(t, "--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
	etcd := storage.Etcd(t, "--unsafe-no-fsync=false")
	for _, server := range []struct {
		name  string
		write func()
	}{
		{"Redis", func() { redis.Do("SET", "k", "v") }},
		{"etcd", func() {
			if out, err := exec.Command(etcd.Ctl, "--endpoints", etcd.Addr, "put", "k", "v").CombinedOutput(); err != nil {
				t.Fatalf("etcdctl: %v\n%s", err, out)
			}
		}},
	} {
		const late = 500 * time.Millisecond
		slow.Set(late)
		start := time.Now()
		server.write()
		if took := time.Since(start); took < late {
			t.Errorf("%s answered after %v to a write whose flush takes %v", server.name, took, late)
		}
		slow.Set(0)
	}
}
