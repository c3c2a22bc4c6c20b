package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	Main(m, map[string]func(){
		"echo":   echo,
		"fail":   func() { fmt.Fprintln(os.Stderr, "why it failed"); os.Exit(3) },
		"race":   race,
		"shows":  func() { fmt.Fprintln(os.Stderr, "the password is "+Password()) },
		"parent": parent,
		"hosts":  hostsRole,
		"beacon": beacon,
		"leaks":  leaks,
	})
}

func echo() {
	fmt.Println(os.Getenv("GREETING"))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(in.Text())
	}
}

// race is an intentional data race.
func race() {
	n := 0
	done := make(chan struct{})
	go func() {
		n++
		close(done)
	}()
	n++
	<-done
	fmt.Println(n)
	bufio.NewReader(os.Stdin).ReadString('\n')
}

// parent starts a server and another process, prints their ids, and never ends
// by itself.
func parent() {
	tb := &outcome{}
	s := Redis(tb)
	p := Spawn(tb, "echo", "GREETING=hello")
	p.Line()
	p.Stop()
	fmt.Println(s.Pid(), p.Pid())
	select {}
}

func TestSpawn(t *testing.T) {
	p := Spawn(t, "echo", "GREETING=hello")
	if got, want := p.Line(), "hello"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, want := range []string{"one", "two words", ""} {
		p.Send(want)
		if got := p.Line(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if err := p.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
	if line, ok := <-p.Lines; ok {
		t.Errorf("after the end: got line %q, want a closed channel", line)
	}
}

func TestSpawnStopAndCont(t *testing.T) {
	p := Spawn(t, "echo", "GREETING=")
	p.Line()
	p.Stop()
	p.Send("ping")
	if got := processState(t, p.Pid()); got != "T" {
		t.Errorf("state of a stopped process: got %s, want T", got)
	}
	p.Cont()
	if got := p.Line(); got != "ping" {
		t.Errorf("got %q, want ping", got)
	}
}

func TestSpawnKill(t *testing.T) {
	p := Spawn(t, "echo")
	p.Stop()
	p.Kill()
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("got %v, want an end by SIGKILL", err)
	}
}

func TestSpawnFailure(t *testing.T) {
	for role, code := range map[string]int{"fail": 3, "no-such-role": 2} {
		var exit *exec.ExitError
		if err := Spawn(t, role).Wait(); !errors.As(err, &exit) || exit.ExitCode() != code {
			t.Errorf("%s: got %v, want exit code %d", role, err, code)
		}
	}
	got := outcomeOf(t, func(tb testing.TB) { Spawn(tb, "fail").Line() })
	if !got.failed || !strings.Contains(got.text, "exit status 3") || !strings.Contains(got.text, "why it failed") {
		t.Errorf("a line of a process that failed: got %q, want its exit code and its output", got.text)
	}
}

func TestSpawnReportsPasswords(t *testing.T) {
	got := outcomeOf(t, func(tb testing.TB) { Spawn(tb, "shows").Wait() })
	if !got.failed || !strings.Contains(got.text, "a password") {
		t.Errorf("got failed=%t, want a failure", got.failed)
	}
}

func TestSpawnReportsDataRaces(t *testing.T) {
	if !raceDetector {
		t.Skip("races in other processes are UNTESTED: this is not a build with -race")
	}
	got := outcomeOf(t, func(tb testing.TB) { Spawn(tb, "race").Line() })
	if !got.failed || !strings.Contains(got.text, "data race") {
		t.Errorf("got failed=%t %q, want a failure", got.failed, got.text)
	}
}
