package testenv

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
)

// outcome is a testing.TB that records how a test ends, to verify failures.
type outcome struct {
	testing.TB
	failed, skipped bool
	text            string
	cleanups        []func()
}

func (o *outcome) Helper()                      {}
func (o *outcome) Name() string                 { return "TestInner" }
func (o *outcome) Failed() bool                 { return o.failed }
func (o *outcome) Cleanup(f func())             { o.cleanups = append(o.cleanups, f) }
func (o *outcome) Fatal(args ...any)            { o.end(&o.failed, fmt.Sprint(args...)) }
func (o *outcome) Fatalf(f string, args ...any) { o.end(&o.failed, fmt.Sprintf(f, args...)) }
func (o *outcome) Skipf(f string, args ...any)  { o.end(&o.skipped, fmt.Sprintf(f, args...)) }

func (o *outcome) Error(args ...any)            { o.note(args...) }
func (o *outcome) Errorf(f string, args ...any) { o.note(fmt.Sprintf(f, args...)) }
func (o *outcome) Logf(f string, args ...any)   { o.text += fmt.Sprintf(f, args...) }

func (o *outcome) TempDir() string {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	o.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (o *outcome) note(args ...any) {
	o.failed = true
	o.text += fmt.Sprint(args...)
}

func (o *outcome) end(flag *bool, text string) {
	*flag = true
	o.text += text
	runtime.Goexit()
}

// outcomeOf runs a test and its cleanups.
func outcomeOf(t *testing.T, test func(tb testing.TB)) *outcome {
	o := &outcome{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(o.cleanups) - 1; i >= 0; i-- {
				o.cleanups[i]()
			}
		}()
		test(o)
	}()
	<-done
	return o
}

func TestServerThatCannotStart(t *testing.T) {
	got := outcomeOf(t, func(tb testing.TB) { Redis(tb, "--no-such-option", "1") })
	if !got.failed || !strings.Contains(got.text, "no-such-option") {
		t.Errorf("got failed=%t %q, want a failure with the server's log", got.failed, got.text)
	}
}

func TestMissingServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, ci := range []string{"", "true"} {
		t.Setenv("CI", ci)
		got := outcomeOf(t, func(tb testing.TB) { Redis(tb) })
		if got.failed != (ci != "") || got.skipped != (ci == "") {
			t.Errorf("CI=%q: got failed=%t skipped=%t", ci, got.failed, got.skipped)
		}
		for _, want := range []string{"TestInner is UNTESTED", "redis-server is not installed", "make test"} {
			if !strings.Contains(got.text, want) {
				t.Errorf("CI=%q: got %q, want %q in it", ci, got.text, want)
			}
		}
	}
}

func TestServerEndsWithItsTest(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		var s *RedisServer
		got := outcomeOf(t, func(tb testing.TB) {
			s = Redis(tb)
			if frozen {
				s.Freeze()
			}
		})
		if got.failed || got.skipped {
			t.Fatal(got.text)
		}
		if _, err := net.Dial("tcp", s.Addr); err == nil || !s.proc.ended() {
			t.Errorf("frozen=%t: the server is still there", frozen)
		}
	}
}
