package zk_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestTokensAfterARestore restores a server from a backup. Tokens fall unless a
// floor above the last token is added to them.
func TestTokensAfterARestore(t *testing.T) {
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	data := filepath.Join(dir, "version-2")
	s := testenv.ZooKeeper(t, "dataDir="+dir)
	lock := func(times int, query string) (last uint64) {
		t.Helper()
		c, err := dsync.Open(guard(t), fmt.Sprintf("zk://%s?ttl=2s%s", s.Addr, query), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range times {
			l, err := c.Lock(guard(t), "x")
			if err != nil {
				t.Fatal(err)
			}
			last = l.Token()
			if err := l.Unlock(guard(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Close(guard(t)); err != nil {
			t.Fatal(err)
		}
		return last
	}
	lock(1, "")
	s.Kill()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	s.Start()
	last := lock(100, "")
	s.Kill()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	s.Start()
	if got := lock(1, ""); got >= last {
		t.Errorf("without a floor: got token %d, want it below the last token before the restore, %d", got, last)
	}
	if got := lock(1, fmt.Sprintf("&floor=%d", last)); got <= last {
		t.Errorf("with a floor: got token %d, want it above the last token before the restore, %d", got, last)
	}
}
