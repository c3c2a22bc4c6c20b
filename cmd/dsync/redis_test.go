package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/migrate"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

const (
	password = testenv.PasswordMark + "x"
	javaHold = "5fb8a8e2-35d0-4d2a-8b7c-0c5f0a1d9e77:57" // a Redisson thread
)

// etcdFloor is above all tokens of Redis for years.
const etcdFloor = 2_100_000_000_000_000

// service is a Redis server that Java services also use, and the etcd server to
// which its locks move.
type service struct {
	*two
	redis *testenv.RedisServer
	names []string
	file  string
}

func redisToEtcd(t *testing.T, n int) *service {
	s := &service{redis: testenv.Redis(t)}
	s.redis.Do("ACL", "SETUSER", "mover", "on", ">"+password, "~*", "&*", "+@all")
	s.two = &two{t: t, from: "redisson://mover:" + password + "@" + s.redis.Addr, to: "etcd://" + testenv.Etcd(t).Addr + fmt.Sprintf("/locks/?floor=%d", uint64(etcdFloor))}
	for i := range n {
		s.names = append(s.names, fmt.Sprintf("orders/%d", i))
	}
	s.file = filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(s.file, []byte(strings.Join(s.names, "\n")), 0o666); err != nil {
		t.Fatal(err)
	}
	return s
}

// sealed returns the number of sealed names.
func (s *service) sealed() (n int64) {
	for _, name := range s.names {
		n += s.redis.Do("HEXISTS", name, "dsync:seal").(int64)
	}
	return n
}

func (s *service) sealing(args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	s.t.Helper()
	cmd, stdout, stderr = testenv.Program(s.t, append([]string{"migrate", "seal", "--all", "--names", s.file, "--ttl", "2s"}, args...)...)
	cmd.Env = append(cmd.Env, "DSYNC_FROM"+"="+s.from, "DSYNC_TO"+"="+s.to)
	return cmd, stdout, stderr
}

// work locks one name after the other, as a program in a phase, until stop is
// called. It fails the test if a token falls.
func (s *service) work(phase migrate.Phase) (stop func()) {
	client, err := dsync.New(s.program(phase, "&ttl=10s"), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var worker sync.WaitGroup
	last := map[string]uint64{}
	worker.Go(func() { // ends when ctx ends
		for i := 0; ctx.Err() == nil; i++ {
			name := s.names[i%len(s.names)]
			err := dsync.Do(ctx, client, name, func(context.Context) error { return nil })
			if err != nil && ctx.Err() == nil {
				s.t.Errorf("a program in phase %v: %v", phase, err)
			}
			l, err := client.Lock(ctx, name)
			if err != nil {
				continue
			}
			if l.Token() <= last[name] {
				s.t.Errorf("%s: got token %d after %d", name, l.Token(), last[name])
			}
			last[name] = l.Token()
			if err := l.Unlock(ctx); err != nil {
				s.t.Errorf("a program in phase %v: %v", phase, err)
			}
		}
	})
	return func() {
		cancel()
		worker.Wait()
		if err := client.Close(context.Background()); err != nil {
			s.t.Error(err)
		}
	}
}

// TestSealIsInterruptedAndRepeated runs the command together with a program
// that locks the names, and interrupts it in the middle.
func TestSealIsInterruptedAndRepeated(t *testing.T) {
	for _, how := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(how.String(), func(t *testing.T) {
			const n = 60
			s := redisToEtcd(t, n)
			stop := sync.OnceFunc(s.work(migrate.PhaseDual))
			defer stop()
			s.run("status", "--names", s.file).want(cli.ExitDone, "0 moved")
			cmd, stdout, stderr := s.sealing("--rate", "40", "--wait", "1m")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, func() bool { return s.sealed() >= 5 }, "some names are sealed")
			if err := cmd.Process.Signal(how); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			done := s.sealed()
			if done < 5 || done >= n {
				t.Fatalf("%d of %d names are sealed, want some\n%s%s", done, n, stdout, stderr)
			}
			if how != syscall.SIGKILL {
				checkInterrupted(t, cmd.ProcessState.ExitCode(), done, stdout.String(), stderr.String())
			}
			cmd, stdout, stderr = s.sealing("--wait", "1m")
			if err := cmd.Run(); err != nil {
				t.Errorf("the repeat: %v\n%s%s", err, stdout, stderr)
			}
			if got := s.sealed(); got != n {
				t.Errorf("%d of %d names are sealed after the repeat", got, n)
			}
			if text := stdout.String() + stderr.String(); strings.Contains(text, password) {
				t.Errorf("the password is in\n%s", text)
			}
			stop() // it listens for names that it locks often, on Redis
			s.run("finalize", "--names", s.file).want(cli.ExitDone, fmt.Sprintf("have moved (%d)", n)).not(password)
		})
	}
}

func checkInterrupted(t *testing.T, status int, sealed int64, stdout, stderr string) {
	t.Helper()
	if status != cli.ExitInterrupted || !strings.Contains(stderr, "interrupted: repeat the command") {
		t.Errorf("got status %d, errors %q, want %d", status, stderr, cli.ExitInterrupted)
	}
	var told int64
	_, rest, _ := strings.Cut(stdout, "\nsealed: ")
	if _, err := fmt.Sscan(strings.TrimSuffix(strings.Fields(rest + " ?")[0], ";"), &told); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	if sealed < told || sealed > told+64 { // names in progress may be sealed without a response
		t.Errorf("%d names are sealed, but seal reported %d\n%s", sealed, told, stdout)
	}
}

// TestRedissonToEtcd follows the runbook of docs/migration.md with a Java
// service that is moved late.
func TestRedissonToEtcd(t *testing.T) {
	s := redisToEtcd(t, 5)
	s.run("plan").want(cli.ExitDone, "yes  name by name", "yes  they rise over the switch").not(password)
	program := s.program(migrate.PhaseDual, "")
	token := drivertest.Token(drivertest.Acquire(t, program, drivertest.Request("orders/0")))

	s.redis.Do("HSET", "orders/1", javaHold, "1")
	s.redis.Do("PEXPIRE", "orders/1", "600000")
	s.run("status", "--names", s.file).want(cli.ExitUnfinished, "behind: orders/1: ", javaHold, "0 moved, 2 held, 3 idle").not(password)
	s.run("seal", "--all", "--names", s.file).want(cli.ExitUnfinished, "behind: orders/1: ", "seal --anyway").not(password)
	s.run("seal", "--all", "--names", s.file, "--anyway").want(cli.ExitUnfinished, "sealed: 3;", "held: orders/0\n", "held: orders/1\n").not(password)

	s.redis.Do("DEL", "orders/1")
	s.redis.Do("DEL", "orders/0") // its holder is notified
	s.run("seal", "--all", "--names", s.file).want(cli.ExitDone, "sealed: 2; sealed already: 3;")

	// A Java service waits for a name that has moved.
	leave := s.subscribe("orders/3")
	s.run("finalize", "--names", s.file).want(cli.ExitUnfinished, "behind: orders/3: 1 client is waiting for it on the old backend", "programs wait on the old backend for names that have moved").not("cut all clients off")
	s.run("status", "--names", s.file).want(cli.ExitUnfinished, "5 moved")
	leave()
	s.run("finalize", "--names", s.file).want(cli.ExitDone, "redisson://mover@"+s.redis.Addr, "have moved (5)").not(password)

	// Only the new backend.
	l := drivertest.Acquire(t, drivertest.Open(t, s.to), drivertest.Request("orders/0"))
	if got, _ := driver.Tokens(l, etcdFloor); got <= token {
		t.Errorf("got token %d from only the new backend after %d", got, token)
	}
	s.run("status", "orders/0").want(cli.ExitDone, "moved", "new")
	if err := program.Close(t.Context()); err != nil {
		t.Error(err)
	}
	s.redis.Kill()
	s.run("status", "orders/0", "--connect", "1s").want(cli.ExitFailed, "old backend").not(password)
}

// subscribe waits for the end of a lock as Redisson does.
func (s *service) subscribe(name string) (leave func()) {
	s.t.Helper()
	conn, err := net.DialTimeout("tcp", s.redis.Addr, 5*time.Second)
	if err != nil {
		s.t.Fatal(err)
	}
	channel := "redisson_lock__channel:{" + name + "}"
	if _, err := fmt.Fprintf(conn, "SUBSCRIBE %s\r\n", channel); err != nil {
		s.t.Fatal(err)
	}
	testenv.Eventually(s.t, func() bool { return s.redis.SubscriberCount(channel) == 1 }, "the service waits")
	return func() {
		conn.Close()
		testenv.Eventually(s.t, func() bool { return s.redis.SubscriberCount(channel) == 0 }, "the service no longer waits")
	}
}
