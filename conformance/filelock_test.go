//go:build unix

package conformance

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
)

func init() {
	driver.Register("file", func(_ context.Context, c *driver.Config) (driver.Driver, error) {
		d := newFileDriver(c.URL.Path)
		if breaks := c.URL.Param("broken", ""); breaks != "" {
			fileMutants[breaks].mutate(d)
		}
		return d, c.URL.Err()
	})
}

// fileDriver is a driver that stores its locks in a directory and is as simple
// as a driver can be. A name is a file in the directory, which waiters poll.
type fileDriver struct {
	dir    string
	suffix string // of the files
	now    func() time.Time
	late   time.Duration // how much later than its real end a lease seems to end

	noTokens bool

	life   context.Context // canceled by Close
	end    context.CancelFunc
	asking sync.WaitGroup

	mu    sync.Mutex
	holds map[*fileLease]bool
}

func newFileDriver(dir string) *fileDriver {
	d := &fileDriver{dir: dir, now: time.Now, holds: map[*fileLease]bool{}}
	d.life, d.end = context.WithCancel(context.Background())
	return d
}

func (d *fileDriver) Info() driver.Info {
	i := driver.Info{Name: "file", Order: driver.Unordered, Fencing: driver.Durable}
	if d.noTokens {
		i.Fencing = driver.None
	}
	return i
}

// record is the content of a file.
type record struct {
	Hold  string
	Until time.Time
	Token uint64
}

// transact changes the record of a name. No other process changes it at the
// same time.
func (d *fileDriver) transact(name string, change func(*record) error) error {
	// File names are shorter than lock names.
	path := filepath.Join(append([]string{d.dir}, chunks(hex.EncodeToString([]byte(name)), 200)...)...) + "_" + d.suffix
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // ends the lock
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	var r record
	if info, err := f.Stat(); err != nil {
		return err
	} else if info.Size() > 0 {
		if err := json.NewDecoder(f).Decode(&r); err != nil {
			return err
		}
	}
	if err := change(&r); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	return err
}

func chunks(s string, n int) []string {
	var all []string
	for len(s) > n {
		all, s = append(all, s[:n]), s[n:]
	}
	return append(all, s)
}

func (d *fileDriver) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	d.mu.Lock()
	if d.life.Err() != nil {
		d.mu.Unlock()
		return nil, driver.ErrClosed
	}
	d.asking.Add(1)
	d.mu.Unlock()
	defer d.asking.Done()
	for first := true; ; first = false {
		if err := ctx.Err(); err != nil && first {
			return nil, err
		}
		l, err := d.take(r)
		if err != driver.ErrLocked || r.NoWait {
			return l, err
		}
		if first {
			r.Events.Waiting()
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-d.life.Done():
			return nil, driver.ErrClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", driver.ErrLocked, ctx.Err())
		}
	}
}

// take tries once to acquire the lock. If it returns an error, the returned
// interface is nil.
func (d *fileDriver) take(r *driver.Request) (driver.Lease, error) {
	l := &fileLease{d: d, r: r}
	sent := time.Now()
	err := d.transact(r.Name, func(now *record) error {
		if now.Hold != "" && d.now().Before(now.Until) {
			return driver.ErrLocked
		}
		l.token = now.Token + 1
		*now = record{r.Hold, time.Now().Add(r.TTL), l.token}
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.expires.Store(int64(sent.Add(r.TTL).Add(d.late).Sub(fileEpoch)))
	d.mu.Lock()
	d.holds[l] = true
	d.mu.Unlock()
	return l, nil
}

func (d *fileDriver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.end()
	d.mu.Unlock()
	d.asking.Wait()
	d.mu.Lock()
	var left []*fileLease
	for l := range d.holds {
		left = append(left, l)
	}
	d.mu.Unlock()
	for _, l := range left {
		_ = l.Release(ctx) // ErrNotHeld is fine too
	}
	return nil
}

var fileEpoch = time.Now()

type fileLease struct {
	d       *fileDriver
	r       *driver.Request
	token   uint64
	expires atomic.Int64 // since fileEpoch
	over    atomic.Bool
}

func (l *fileLease) Tokens() (uint64, int) {
	if l.d.noTokens {
		return 0, 0
	}
	return l.token, 1
}

func (l *fileLease) Expires() time.Time { return fileEpoch.Add(time.Duration(l.expires.Load())) }

// own applies change to the record of the hold.
func (l *fileLease) own(change func(*record)) error {
	return l.d.transact(l.r.Name, func(now *record) error {
		if at := time.Now(); now.Hold != l.r.Hold || !at.Before(now.Until) || !at.Before(l.Expires()) { // two clocks
			return driver.ErrNotHeld
		}
		change(now)
		return nil
	})
}

func (l *fileLease) Renew(_ context.Context, ttl time.Duration) error {
	sent := time.Now()
	if l.over.Load() || !sent.Before(l.Expires()) {
		return driver.ErrNotHeld
	}
	err := l.own(func(now *record) { now.Until = time.Now().Add(ttl) })
	if err == nil {
		l.expires.Store(int64(sent.Add(ttl).Add(l.d.late).Sub(fileEpoch)))
	}
	return err
}

func (l *fileLease) Release(context.Context) error {
	l.d.mu.Lock()
	delete(l.d.holds, l)
	l.d.mu.Unlock()
	l.over.Store(true)
	return l.own(func(now *record) { now.Hold = "" })
}

// onFiles returns a harness of the driver on a directory.
func onFiles(t *testing.T, query string) Harness {
	url := "file://" + t.TempDir() + query
	return Harness{Backend: func(testing.TB) *Backend {
		return &Backend{URL: url, New: func(tb testing.TB) (driver.Driver, *Link) {
			d, _, err := driver.Open(tb.Context(), url)
			if err != nil {
				tb.Fatal(err)
			}
			return d, nil
		}}
	}}
}

// The omitted groups take a long time in real time or need faults that no
// harness can inject into files.
func TestFileDriverPasses(t *testing.T) {
	t.Parallel()
	runChecks(t, onFiles(t, ""), slices.Concat(exclusionChecks, waitingChecks, ownershipChecks, contentionChecks, capabilityChecks,
		closingChecks, fencingChecks, namesChecks, processChecks))
}
