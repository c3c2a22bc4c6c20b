package testenv

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
)

func TestRedisDo(t *testing.T) {
	s := Redis(t)
	for _, test := range []struct {
		args []string
		want any
	}{
		{[]string{"SET", "k", "a\r\nb"}, "OK"},
		{[]string{"GET", "k"}, "a\r\nb"},
		{[]string{"GET", "absent"}, nil},
		{[]string{"PEXPIRE", "k", "10000"}, int64(1)},
		{[]string{"MGET", "k", "absent"}, []any{"a\r\nb", nil}},
		{[]string{"KEYS", "none*"}, []any{}},
		{[]string{"EVAL", "return {1, 'two', {err = 'BAD three'}}", "0"}, []any{int64(1), "two", RedisError("BAD three")}},
	} {
		if got := s.Do(test.args...); fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", test.want) {
			t.Errorf("%q: got %#v, want %#v", test.args, got, test.want)
		}
	}
	_, err := s.Try("HGET", "k", "f")
	var answer RedisError
	if !errors.As(err, &answer) || !strings.HasPrefix(string(answer), "WRONGTYPE ") {
		t.Errorf("HGET of a string: got %v, want WRONGTYPE", err)
	}
}

func TestRedisKeepsNothingByDefault(t *testing.T) {
	s := Redis(t)
	s.Do("SET", "k", "v")
	addr, pid := s.Addr, s.Pid()
	s.Kill()
	if _, err := s.Try("PING"); err == nil {
		t.Error("PING after Kill: got an answer, want an error")
	}
	s.Start()
	if s.Addr != addr || s.Pid() == pid {
		t.Errorf("after Start: got %s pid %d, want %s and another pid than %d", s.Addr, s.Pid(), addr, pid)
	}
	if got := s.Do("GET", "k"); got != nil {
		t.Errorf("GET after a restart: got %v, want nothing", got)
	}
}

func TestRedisKeepsDataOnRequest(t *testing.T) {
	s := Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	s.Do("SET", "k", "v")
	s.Restart()
	if got := s.Do("GET", "k"); got != "v" {
		t.Errorf("GET after a restart: got %v, want v", got)
	}
}

func TestRedisFreeze(t *testing.T) {
	s := Redis(t)
	s.Freeze()
	s.Freeze()
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatalf("connect to a frozen server: %v", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("SET k v\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	if state := processState(t, s.Pid()); state != "T" {
		t.Errorf("state of the frozen process: got %s, want T", state)
	}
	s.Thaw()
	answer := make([]byte, len("+OK\r\n+PONG\r\n"))
	if _, err := io.ReadFull(conn, answer); err != nil {
		t.Fatal(err)
	}
	if got := s.Do("GET", "k"); got != "v" {
		t.Errorf("request that was sent to the frozen server: got %v, want v", got)
	}
	s.Freeze()
	s.Restart()
	s.Do("PING")
}

func processState(t *testing.T, pid int) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the state of a frozen process is UNTESTED: it can only be read on Linux")
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return state(stat)
}

// gone reports whether a process has ended, reaped or not.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return os.IsNotExist(err) || state(stat) == "Z"
}

// state is the state of a process in its line of /proc.
func state(stat []byte) string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
}

func TestRedisCommands(t *testing.T) {
	s := Redis(t)
	before := s.Commands()
	s.Do("SET", "k", "1")
	s.Do("INCR", "k")
	s.Do("INCR", "k")
	s.Do("EVAL", "return redis.call('incr', KEYS[1])", "1", "k")
	after := s.Commands()
	for name, want := range map[string]int64{"set": 1, "incr": 3, "eval": 1, "get": 0, "info": 0} {
		if got := after[name] - before[name]; got != want {
			t.Errorf("%s: got %d calls, want %d", name, got, want)
		}
	}
	if got := len(after) - len(before); got != 3 {
		t.Errorf("got %d commands that were not called before, want 3: %v", got, after)
	}
}

func TestRedisSubscriberCount(t *testing.T) {
	s := Redis(t)
	conn, err := dialRESP(t.Context(), s.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i, command := range []string{"SUBSCRIBE", "SSUBSCRIBE"} {
		if got := s.SubscriberCount("c"); got != int64(i) {
			t.Errorf("before %s: got %d subscribers, want %d", command, got, i)
		}
		if _, err := conn.do(command, "c"); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.SubscriberCount("c"); got != 2 {
		t.Errorf("got %d subscribers, want 2", got)
	}
}

func TestRedisAwaitReplicas(t *testing.T) {
	primary := Redis(t)
	replica := Redis(t, "--replicaof", strings.Replace(primary.Addr, ":", " ", 1))
	Eventually(t, replica.replicates, "the replica follows the primary")
	primary.AwaitReplicas(1)
	replica.Freeze()
	primary.Do("SET", "k", "v")
	done := make(chan struct{})
	go func() {
		primary.AwaitReplicas(1)
		close(done)
	}()
	Eventually(t, func() bool { return primary.info("INFO", "clients")["blocked_clients"] == "1" }, "AwaitReplicas is waiting")
	replica.Thaw()
	<-done
	if got := replica.Do("GET", "k"); got != "v" {
		t.Errorf("got %v, want v", got)
	}
}

func TestRedisPassword(t *testing.T) {
	s := Redis(t, "--requirepass", Password())
	s.Do("SET", "k", "v")
	stranger, err := dialRESP(t.Context(), s.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.do("GET", "k"); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH ") {
		t.Errorf("GET without the password: got %v, want NOAUTH", err)
	}
}

func TestRedisTLS(t *testing.T) {
	certs := NewCertificates(t)
	s := RedisTLS(t, certs)
	s.Do("SET", "k", "v")
	ask := func(config *tls.Config) error {
		conn, err := dialRESP(t.Context(), s.Addr, config)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.do("GET", "k")
		return err
	}
	if err := ask(certs.Client); err != nil {
		t.Errorf("with the certificates: %v", err)
	}
	if err := ask(nil); err == nil {
		t.Error("without TLS: got an answer, want an error")
	}
	if err := ask(NewCertificates(t).Client); err == nil {
		t.Error("with another authority: got an answer, want an error")
	}
	anonymous := certs.Client.Clone()
	anonymous.Certificates = nil
	if err := ask(anonymous); err == nil {
		t.Error("without a client certificate: got an answer, want an error")
	}
	s = RedisTLS(t, certs, "--tls-auth-clients", "no")
	if err := ask(anonymous); err != nil {
		t.Errorf("without a client certificate where none is required: %v", err)
	}
}
