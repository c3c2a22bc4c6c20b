package testenv

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

func TestServerDirRemovesWhatIsLeft(t *testing.T) {
	parent := t.TempDir()
	left, other := filepath.Join(parent, "data-1"), filepath.Join(parent, "more-1")
	for _, dir := range []string{left, other} {
		if err := os.MkdirAll(filepath.Join(dir, "inside"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var first string
	t.Run("inner", func(t *testing.T) {
		var err error
		if first, err = serverDir(t, parent, "data-"); err != nil {
			t.Fatal(err)
		}
		second, err := serverDir(t, parent, "data-")
		if err != nil {
			t.Fatal(err)
		}
		for dir, want := range map[string]bool{left: false, other: true, first: true, second: true} {
			if _, err := os.Stat(dir); (err == nil) != want {
				t.Errorf("%s: %v; want an existing directory: %t", dir, err, want)
			}
		}
	})
	if _, err := os.Stat(first); err == nil {
		t.Error("the directory of a test that has ended is still there")
	}
}

// TestServerDirsAtOnce lets many tests make directories, none of which may be
// taken for an abandoned one.
func TestServerDirsAtOnce(t *testing.T) {
	parent := t.TempDir()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			dir, err := serverDir(t, parent, "data-")
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if files, err := filepath.Glob(filepath.Join(parent, "data-*", "*")); err != nil || len(files) != 20 {
		t.Errorf("%d files, %v; want 20", len(files), err)
	}
}
