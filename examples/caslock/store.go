//go:build unix

package caslock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Store keeps one value for each key, with a version. The driver needs nothing else of a backend: Get and Put are a conditional
// write of DynamoDB, an update of a Kubernetes object with its resourceVersion, If-Match of an object store.
type Store interface {
	// Get returns the value of key and its version, or nil and 0 if there is none.
	Get(ctx context.Context, key string) (value []byte, version uint64, err error)

	// Put replaces the value if it still has the version, and returns the new version, which is larger. Otherwise Put changes
	// nothing and returns errConflict. After any other error the request may have been carried out, or may be later.
	Put(ctx context.Context, key string, value []byte, version uint64) (next uint64, err error)
}

var errConflict = errors.New("the value has another version")

// Folder is a Store for the processes of one machine. A key has two files: one with version and value, which is replaced as a whole, and one
// to lock meanwhile.
type Folder string

func (f Folder) Get(ctx context.Context, key string) (value []byte, version uint64, err error) {
	err = f.locked(ctx, key, func(path string) error {
		version, value, err = read(path)
		return err
	})
	return value, version, err
}

func (f Folder) Put(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	next := version + 1
	return next, f.locked(ctx, key, func(path string) error {
		if now, _, err := read(path); err != nil || now != version {
			return cmp.Or(err, errConflict)
		}
		if err := os.WriteFile(path+".next", append(binary.BigEndian.AppendUint64(nil, next), value...), 0o666); err != nil {
			return err
		}
		return os.Rename(path+".next", path)
	})
}

func (f Folder) locked(ctx context.Context, key string, do func(path string) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path := filepath.Join(string(f), fmt.Sprintf("%x", sha256.Sum256([]byte(key))))
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer file.Close() // unlocks
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	return do(path)
}

func read(path string) (version uint64, value []byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) < 8 {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return 0, nil, err
	}
	return binary.BigEndian.Uint64(b), b[8:], nil
}
