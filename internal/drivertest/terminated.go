package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

const urlVariable = "DSYNC_TEST_URL"

// lockedNames are the names that TerminatedRole holds.
func lockedNames() (names []string) {
	for i := range 10 {
		names = append(names, fmt.Sprint("terminated/", i))
	}
	return names
}

// TerminatedRole is a role of testenv.Spawn: a program that closes its client
// when a signal ends the program. It passes Close the context that the signal
// canceled.
func TerminatedRole() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := dsync.Open(ctx, os.Getenv(urlVariable), nil)
	for _, name := range lockedNames() {
		if err == nil {
			_, err = client.Lock(ctx, name)
		}
	}
	fmt.Println("locked:", err)
	<-ctx.Done()
	fmt.Println("closed:", client.Close(ctx))
}

// FreesWhenTerminated checks that the locks of such a program are free once it
// has ended, long before their TTL expires. The test binary must have
// TerminatedRole as its role "terminated".
func FreesWhenTerminated(t *testing.T, url string) {
	p := testenv.Spawn(t, "terminated", urlVariable+"="+url)
	if got, want := p.Line(), "locked: <nil>"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	process, err := os.FindProcess(p.Pid())
	if err == nil {
		err = process.Signal(syscall.SIGTERM)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Line(), "closed: <nil>"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	client, err := dsync.Open(Guard(t), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(Guard(t))
	for _, name := range lockedNames() {
		if _, err := client.TryLock(Guard(t), name); errors.Is(err, dsync.ErrLocked) {
			t.Errorf("%q is held by a program that has ended", name)
		} else if err != nil {
			t.Error(err)
		}
	}
}
