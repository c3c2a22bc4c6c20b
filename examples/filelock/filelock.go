//go:build unix

// Package filelock is a worked example of a driver. It locks names across the
// processes of one machine, with flock(2) on files in a directory. For each
// name, a file with the last fencing token remains.
package filelock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/go-dsync/dsync/driver"
)

func init() {
	driver.Register("filelock", func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		if err := c.URL.Err(); err != nil {
			return nil, err
		}
		if c.URL.User != nil || len(c.URL.Hosts) > 0 || c.URL.Path == "" {
			return nil, errors.New("filelock URL: want filelock:///directory, without user or host")
		}
		return New(c.URL.Path, &Options{NoTokens: !c.Fenced}), nil
	})
}

// Options are the options of a Driver. The zero value is ready to use.
type Options struct {
	NoTokens bool // leases have no fencing tokens, and none are stored: fenced=false
}

// Driver locks files in a directory. It implements driver.Driver.
type Driver struct {
	dir    string
	o      Options
	life   context.Context // canceled by Close
	end    context.CancelFunc
	mu     sync.Mutex
	leases map[*lease]bool
}

// New returns a driver that stores its files in dir, which must exist. If
// options is nil, it uses the defaults.
func New(dir string, o *Options) *Driver {
	d := &Driver{dir: dir, leases: map[*lease]bool{}}
	d.life, d.end = context.WithCancel(context.Background())
	if o != nil {
		d.o = *o
	}
	return d
}

func (d *Driver) Info() driver.Info {
	if d.o.NoTokens {
		return driver.Info{Name: "filelock"}
	}
	return driver.Info{Name: "filelock", Fencing: driver.Durable}
}

// Acquire polls, at first after 1 ms and finally every 20 ms, because a blocked
// flock cannot be canceled.
func (d *Driver) Acquire(ctx context.Context, r *driver.Request) (l driver.Lease, err error) {
	for pause := time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 20*time.Millisecond) {
		if l, err = d.try(ctx, r); !errors.Is(err, driver.ErrLocked) || r.NoWait {
			return l, err
		}
		if pause == time.Millisecond {
			r.Events.Waiting()
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-d.life.Done():
			return nil, driver.ErrClosed
		case <-ctx.Done():
		}
	}
	return nil, errors.Join(ctx.Err(), err) // err is the last refusal, if any
}

func (d *Driver) try(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	file, err := os.OpenFile(fmt.Sprintf("%s/%x", d.dir, sha256.Sum256([]byte(r.Name))), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	l := &lease{driver: d, file: file, end: time.Now().Add(r.TTL)}
	if !d.o.NoTokens {
		l.tokens = r.Events.Tokens()
	}
	if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		err = errors.Join(ctx.Err(), l.takeTokens())
	} else if errors.Is(err, syscall.EWOULDBLOCK) {
		err = driver.ErrLocked
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life.Err() != nil {
		err = driver.ErrClosed
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	d.leases[l] = true
	l.timer = time.AfterFunc(r.TTL, func() { _ = l.Release(context.Background()) })
	return l, nil
}

func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.end()
	leases := maps.Clone(d.leases)
	d.mu.Unlock()
	for l := range leases {
		_ = l.Release(ctx)
	}
	return nil
}

type lease struct {
	driver *Driver
	file   *os.File // locked
	first  uint64
	tokens int
	timer  *time.Timer
	end    time.Time // guarded by driver.mu
}

func (l *lease) takeTokens() error { // the file stores the last one
	if l.tokens == 0 {
		return nil
	}
	var b [8]byte
	if _, err := l.file.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	l.first = binary.BigEndian.Uint64(b[:]) + 1
	_, err := l.file.WriteAt(binary.BigEndian.AppendUint64(nil, l.first+uint64(l.tokens)-1), 0)
	return err
}

func (l *lease) Tokens() (uint64, int) { return l.first, l.tokens }

func (l *lease) Expires() time.Time {
	l.driver.mu.Lock()
	defer l.driver.mu.Unlock()
	return l.end
}

func (l *lease) Renew(_ context.Context, ttl time.Duration) error {
	l.driver.mu.Lock()
	defer l.driver.mu.Unlock()
	if !l.driver.leases[l] || !time.Now().Before(l.end) {
		return driver.ErrNotHeld
	}
	l.end = time.Now().Add(ttl)
	l.timer.Reset(ttl)
	return nil
}

func (l *lease) Release(context.Context) error {
	l.driver.mu.Lock()
	defer l.driver.mu.Unlock()
	if !l.driver.leases[l] {
		return driver.ErrNotHeld
	}
	delete(l.driver.leases, l)
	l.timer.Stop()
	// Closing the file is not enough: a process that is just being started has
	// a copy of the file until it begins.
	err := errors.Join(syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN), l.file.Close())
	if err == nil && !time.Now().Before(l.end) {
		return driver.ErrNotHeld // the timer is a little late
	}
	return err
}
