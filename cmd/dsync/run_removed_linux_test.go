package main

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// soon is shorter than the time that any backend needs to detect the removal of
// a young hold only by a query or a renewal.
const soon = 300 * time.Millisecond

// TestRunLearnsOfARemoval checks that a command ends as soon as its lock is
// removed, and that waiting for the removal creates no waiter. A try that takes
// longer is repeated because the machine may be busy.
func TestRunLearnsOfARemoval(t *testing.T) {
	t.Parallel()
	beds := trialBeds(t, true)
	redis := strings.TrimPrefix(beds[0].url(beds[0].addrs), "redisson://")
	for _, test := range []struct {
		title, url string
		bed        *bed
		flags      string
	}{
		{"redisson", "", beds[0], ""},
		{"redisson, readers", "", beds[0], "--read"},
		{"redisson, a writer", "", beds[0], "--write"},
		{"redisson, permits", "", beds[0], "--permits 1/2"},
		{"redisson, a fixed lease", "", beds[0], "--at-least 1m"},
		{"redisson, fair", "redisson://" + redis + "?fair=true", beds[0], ""},
		{"redlock", "", beds[1], ""},
		{"redis-string", "redis-string://" + redis + "?durable=true", nil, ""},
		{"etcd", "", beds[2], ""},
		{"zk", "", beds[3], ""},
		{"pglock", "", beds[4], ""},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			url := test.url
			if url == "" {
				url = test.bed.url(test.bed.addrs)
			}
			client, err := dsync.Open(t.Context(), url, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close(context.Background()) })
			name := "removed " + test.title
			for try := 1; ; try++ {
				job, pids := jobOf(t, false)
				args := append([]string{"run", "--ttl", "1m", name}, strings.Fields(test.flags)...)
				cmd, _, errs := testenv.Program(t, append(args, "--", job)...)
				cmd.Env = append(cmd.Env, "DSYNC_URL"+"="+url)
				c := startCommand(t, cmd, errs)
				testenv.Eventually(t, func() bool { return len(pids()) > 0 }, "the job runs")
				if s, err := client.Inspect(t.Context(), name); err != nil || !s.Held || s.Waiters > 0 {
					t.Errorf("inspect: %+v, %v; want no waiters", s, err)
				}
				if err := client.ForceUnlock(t.Context(), name); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				stuck := time.AfterFunc(drivertest.HangGuard, func() { _ = c.Process.Signal(syscall.SIGABRT) }) // SIGABRT makes the process print its stacks
				status := c.wait()
				stuck.Stop()
				if status != cli.ExitLost {
					t.Fatalf("got status %d: %s", status, c.errors())
				}
				took := time.Since(began)
				if took < soon {
					return
				}
				if try == 5 {
					t.Fatalf("the command ended %v after the removal", took)
				}
			}
		})
	}
}
