//go:build clientgo

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Package leaderelection of client-go takes minutes to compile, so it is here for `make bench-elections` alone.
func init() {
	electors["file"] = func(tb testing.TB) string { return filepath.Join(tb.TempDir(), "lease") }
	candidates = append(candidates, &candidate{"client-go leaderelection", "file", electByClientGo})
}

// electByClientGo has the constants of Kubernetes, and gives the lease back at its end.
func electByClientGo(ctx context.Context, addr string, ready, leads func()) error {
	ready()
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            &fileLease{path: addr},
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leads() },
			OnStoppedLeading: func() {},
		},
	})
	return nil
}

// fileLease is a Lease object in a file: an update is refused where somebody else has updated it since the last look.
type fileLease struct {
	path string
	seen []byte
}

var lease = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (l *fileLease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	text, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, kerrors.NewNotFound(lease, l.path)
	}
	record := new(resourcelock.LeaderElectionRecord)
	if err == nil {
		l.seen, err = text, json.Unmarshal(text, record)
	}
	return record, text, err
}

func (l *fileLease) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, nil)
}

func (l *fileLease) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, l.seen)
}

// write replaces what was seen.
func (l *fileLease) write(record resourcelock.LeaderElectionRecord, seen []byte) error {
	mutex, err := os.OpenFile(l.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer mutex.Close()
	if err := syscall.Flock(int(mutex.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	there, err := os.ReadFile(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(there) != string(seen) {
		return kerrors.NewConflict(lease, l.path, errors.New("updated by somebody else"))
	}
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.path+".new", text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(l.path+".new", l.path); err != nil {
		return err
	}
	l.seen = text
	return nil
}

func (l *fileLease) RecordEvent(string) {}
func (l *fileLease) Identity() string   { return strconv.Itoa(os.Getpid()) }
func (l *fileLease) Describe() string   { return l.path }
