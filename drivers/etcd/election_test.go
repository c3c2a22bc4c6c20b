package etcd_test

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// candidate is a client of any library that wants to lead, with a proposal.
type candidate struct {
	said string

	// campaign returns when the candidate leads, with a function that resigns
	campaign func(ctx context.Context) (resign func(context.Context) error, err error)
}

// electedDsync is a client of dsync with its own driver.
func electedDsync(t *testing.T, s *testenv.EtcdServer, said string) (*dsync.Client, candidate) {
	t.Helper()
	c, err := dsync.Open(guard(t), "etcd://"+s.Addr+"?value=note", &dsync.Options{Note: said})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c, candidate{said, func(ctx context.Context) (func(context.Context) error, error) {
		l, err := c.Lock(ctx, "leader")
		if err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}}
}

func electedByConcurrency(t *testing.T, c *clientv3.Client, said string) candidate {
	t.Helper()
	e := concurrency.NewElection(newSession(t, c), "leader")
	return candidate{said, func(ctx context.Context) (func(context.Context) error, error) {
		return e.Resign, e.Campaign(ctx, said)
	}}
}

// electedByEtcdctl runs `etcdctl elect`, which prints its proposal when it
// leads, and resigns at SIGINT.
func electedByEtcdctl(s *testenv.EtcdServer, said string) candidate {
	return candidate{said, func(context.Context) (func(context.Context) error, error) {
		cmd, lines, err := etcdctlElect(s, "leader", said)
		if err != nil {
			return nil, err
		}
		for line := range lines { // the key comes first
			if line == said {
				return func(context.Context) error {
					defer cmd.Wait()
					return cmd.Process.Signal(syscall.SIGINT)
				}, nil
			}
		}
		return nil, cmd.Wait()
	}}
}

// etcdctlElect starts `etcdctl elect` with some arguments. The channel receives
// its output and is closed at its end.
func etcdctlElect(s *testenv.EtcdServer, args ...string) (*exec.Cmd, <-chan string, error) {
	cmd := exec.Command(s.Ctl, append([]string{"--endpoints", s.Addr, "elect"}, args...)...)
	cmd.Env = append(cmd.Environ(), "ETCDCTL_API=3")
	testenv.EndWithUs(cmd)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	lines := make(chan string, 100)
	go func() { // ends when the process ends
		defer close(lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			lines <- in.Text()
		}
	}()
	return cmd, lines, cmd.Start()
}

// TestElections has leaders of dsync, of package concurrency and of etcdctl
// follow each other, while all of them observe.
func TestElections(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	observer, first := electedDsync(t, s, "10.0.0.1:80")
	_, last := electedDsync(t, s, `{"address": "10.0.0.4", "pass": 1}`)
	candidates := []candidate{first, electedByConcurrency(t, c, "10.0.0.2:80"), electedByEtcdctl(s, "10.0.0.3:80"), last}

	ctx, stop := context.WithCancel(guard(t))
	defer stop()
	ours, theirs := make(chan string, 100), make(chan string, 100)
	go func() { // ends when ctx ends
		defer close(ours)
		for status, err := range observer.Observe(ctx, "leader") {
			if err != nil {
				t.Error(err)
			} else if status.Held {
				ours <- status.Note
			}
		}
	}()
	election := concurrency.NewElection(newSession(t, c), "leader")
	go func() { // ends when ctx ends
		defer close(theirs)
		for answer := range election.Observe(ctx) {
			theirs <- string(answer.Kvs[0].Value)
		}
	}()
	listener, heard, err := etcdctlElect(s, "--listen", "leader")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Wait()
	defer listener.Process.Kill()

	var resign func(context.Context) error
	for i, candidate := range candidates {
		elected := make(chan func(context.Context) error, 1)
		go func() { // ends when the leader resigns and the election ends
			resign, err := candidate.campaign(ctx)
			if err != nil {
				t.Errorf("%s: %v", candidate.said, err)
			}
			elected <- resign
		}()
		if i > 0 {
			testenv.Eventually(t, func() bool { return len(keys(t, c, "leader/")) == 2 }, candidate.said+" waits")
			select {
			case <-elected:
				t.Fatalf("%s leads at the same time as %s", candidate.said, candidates[i-1].said)
			default:
			}
			if err := resign(ctx); err != nil {
				t.Error(err)
			}
		}
		if resign = <-elected; resign == nil {
			return
		}
		answer, err := election.Leader(ctx)
		if err != nil || string(answer.Kvs[0].Value) != candidate.said {
			t.Errorf("Election.Leader: got %v, %v, want %s", answer, err, candidate.said)
		}
		for who, seen := range map[string]<-chan string{"Client.Observe": ours, "Election.Observe": theirs, "etcdctl elect --listen": heard} {
			awaitLeader(t, who, seen, candidate.said)
		}
	}
	if err := resign(ctx); err != nil {
		t.Error(err)
	}
	stop()
	for range ours {
	}
	for range theirs {
	}
}

// awaitLeader waits until an observer sees a leader. Earlier leaders and keys
// may come first.
func awaitLeader(t *testing.T, who string, seen <-chan string, want string) {
	t.Helper()
	var got []string
	for said := range seen {
		if got = append(got, said); strings.TrimSpace(said) == want {
			return
		}
	}
	t.Errorf("%s: got %q, want %s", who, got, want)
}

// TestRecordOfALeader checks that observers of an Election see a record if a
// client of dsync does not use the note as the whole value.
func TestRecordOfALeader(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	for _, query := range []string{"", "?value=record"} {
		d := openURL(t, "etcd://%s%s", s.Addr, query)
		r := request("leader")
		r.Note = "10.0.0.1:80"
		l := acquire(t, d, r)
		answer, err := concurrency.NewElection(newSession(t, c), "leader").Leader(guard(t))
		if err != nil || !strings.Contains(string(answer.Kvs[0].Value), `"note":"10.0.0.1:80"`) {
			t.Errorf("Election.Leader: got %v, %v, want a record with the note", answer, err)
		}
		release(t, l)
	}
}

// TestPassOfANote passes a hold to another caller of its client while another
// client waits. The key does not show the pass.
func TestPassOfANote(t *testing.T) {
	s := testenv.Etcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s?value=note", s.Addr)
	r := request("leader")
	r.Note = "first"
	l := acquire(t, d, r)
	before := token(l)
	other := wait(t, openURL(t, "etcd://%s?value=note", s.Addr), request("leader"))
	testenv.Eventually(t, func() bool { return len(keys(t, c, "leader/")) == 2 }, "the other client waits")
	if err := l.(driver.Passer).Pass(guard(t), "caller", "second"); err != nil {
		t.Fatal(err)
	}
	if token(l) <= before {
		t.Errorf("tokens: got %d and then %d", before, token(l))
	}
	for range 2 { // after two passes the other client has looked again
		answer, err := concurrency.NewElection(newSession(t, c), "leader").Leader(guard(t))
		if err != nil || string(answer.Kvs[0].Value) != "second" {
			t.Errorf("Election.Leader: got %v, %v, want second", answer, err)
		}
		if _, err := d.Acquire(guard(t), noWait("leader")); err != driver.ErrLocked {
			t.Errorf("a third client: got %v, want %v", err, driver.ErrLocked)
		}
	}
	if !other.Waits() {
		t.Error("the other client was granted the lock when it was passed")
	}
	release(t, l)
	release(t, other.Granted(t))
}
