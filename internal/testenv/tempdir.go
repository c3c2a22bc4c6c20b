package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// serverDir makes a directory with the data of a server, which is removed at the end of the test. The test holds a lock on the directory
// meanwhile. Directories of the same prefix without a lock are those of test binaries that were killed, and are removed before.
func serverDir(tb testing.TB, parent, prefix string) (string, error) {
	tb.Helper()
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*")) // the pattern is not malformed
	for _, dir := range left {
		if unlock, err := lockDir(dir, false); err == nil {
			os.RemoveAll(dir)
			unlock()
		}
	}
	for {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return "", err
		}
		unlock, err := lockDir(dir, true)
		if os.IsNotExist(err) {
			continue // another test took the directory for one that is left
		}
		if err != nil {
			return "", err
		}
		tb.Cleanup(func() {
			os.RemoveAll(dir)
			unlock()
		})
		return dir, nil
	}
}

// lockDir locks a directory until unlock is called or the process ends. Without a wait, one that somebody else has locked is an error. A directory that was removed before is fs.ErrNotExist.
func lockDir(dir string, wait bool) (unlock func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err = lockFile(f, wait); err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f.Close, nil
}
