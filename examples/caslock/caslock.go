//go:build unix

// Package caslock is a worked example of a backend that can only replace a
// value if it has not changed. It has no server clock, no sessions, and no
// messages to waiters. Its store is a directory, for the processes of one
// machine. Package cas turns it into a driver.
package caslock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/driver/cas"
)

func init() {
	driver.Register("caslock", func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		poll := c.URL.Duration("poll", 20*time.Millisecond)
		if err := c.URL.Err(); err != nil {
			return nil, err
		}
		if c.URL.User != nil || len(c.URL.Hosts) > 0 {
			return nil, errors.New("caslock URL: a directory has no host, user or password, as in caslock:///var/lock/orders")
		}
		return cas.New(Folder(c.URL.Path), cas.Options{Name: "caslock", Poll: poll, NoTokens: !c.Fenced}), nil
	})
}

// Folder is a cas.Store in a directory. Each name has two files. One contains
// the record, which is replaced as a whole. The other is locked while the
// record is being replaced. The version of a record is a hash of its value,
// because no two values are equal.
type Folder string

// Read implements cas.Store. It needs no lock, because a file is replaced as a
// whole.
func (f Folder) Read(ctx context.Context, name string) (cas.Entry, error) {
	if err := ctx.Err(); err != nil {
		return cas.Entry{}, err
	}
	return read(f.path(name))
}

func (f Folder) path(name string) string { return filepath.Join(string(f), hash([]byte(name))) }

// Write implements cas.Store.
func (f Folder) Write(ctx context.Context, name string, value []byte, version string) (next string, err error) {
	return hash(value), f.locked(ctx, name, func(path string) error {
		if now, err := read(path); err != nil || now.Version != version {
			return cmp.Or(err, cas.ErrChanged)
		}
		if err := os.WriteFile(path+".next", value, 0o666); err != nil {
			return err
		}
		return os.Rename(path+".next", path)
	})
}

// Delete implements cas.Store.
func (f Folder) Delete(ctx context.Context, name, version string) error {
	return f.locked(ctx, name, func(path string) error {
		if now, err := read(path); err != nil || now.Version != version {
			return cmp.Or(err, cas.ErrChanged)
		}
		return os.Remove(path)
	})
}

// List implements cas.Lister. Only the records contain the names.
func (f Folder) List(ctx context.Context, _ string) iter.Seq2[cas.Entry, error] {
	return func(yield func(cas.Entry, error) bool) {
		files, err := os.ReadDir(string(f))
		for i := 0; err == nil && i < len(files); i++ {
			if strings.Contains(files[i].Name(), ".") {
				continue
			}
			var e cas.Entry
			if e, err = read(filepath.Join(string(f), files[i].Name())); err == nil {
				err = ctx.Err()
			}
			if err == nil && e.Version != "" && !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(cas.Entry{}, err)
		}
	}
}

func hash(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// locked calls do with the path of a name, in only one process at a time. If it
// returns an error, nothing has changed.
func (f Folder) locked(ctx context.Context, name string, do func(path string) error) error {
	path := f.path(name)
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	defer file.Close() // unlocks
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	err = do(path)
	if err != nil && !errors.Is(err, cas.ErrChanged) {
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return err
}

// read returns the record in a file, if there is one.
func read(path string) (e cas.Entry, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	return cas.Entry{Value: b, Version: hash(b)}, err
}
