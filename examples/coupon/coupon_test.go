package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.RunProgram(main, childVariable)
	testenv.NoLeaks(m)
}

// checkSuccess checks the output of a run whose lock worked.
func checkSuccess(t *testing.T, buyers, coupons, status int, stdout, stderr string) {
	t.Helper()
	sold := min(buyers, coupons)
	want := fmt.Sprintf("\nwith lock: issued=%d refused=%d remaining=%d\n", sold, buyers-sold, coupons-sold)
	if status != 0 || stderr != "" || !strings.HasSuffix(stdout, want) {
		t.Errorf("got status %d, standard output %q, standard error %q; want 0, no standard error, and %q at the end", status, stdout, stderr, want)
	}
	if n := strings.Count(stdout, "with lock:"); n != 1 {
		t.Errorf("the last line appears %d times, want once", n)
	}
}

func TestRun(t *testing.T) {
	for _, test := range []struct{ buyers, coupons int }{{100, 50}, {50, 100}, {20, 20}, {1, 1}, {3, 0}, {400, 1}, {2, 1000}} {
		t.Run(fmt.Sprintf("%d buyers, %d coupons", test.buyers, test.coupons), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			args := []string{"-moment", "100us", "-buyers", strconv.Itoa(test.buyers), "-coupons", strconv.Itoa(test.coupons)}
			status := run(t.Context(), args, &stdout, &stderr)
			checkSuccess(t, test.buyers, test.coupons, status, stdout.String(), stderr.String())
		})
	}
}

func TestRunCountsLostUpdates(t *testing.T) {
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-moment", "20ms", "-buyers", "40", "-coupons", "10"}, &stdout, &stderr)
	checkSuccess(t, 40, 10, status, stdout.String(), stderr.String())
	for _, row := range []string{"without lock", "with lock"} {
		_, rest, ok := strings.Cut(stdout.String(), "\n"+row+" ")
		if !ok {
			t.Fatalf("no row %q in\n%s", row, stdout.String())
		}
		var issued, refused, remaining, oversold, lost int
		if _, err := fmt.Sscan(rest, &issued, &refused, &remaining, &oversold, &lost); err != nil {
			t.Fatalf("row %q: %v in\n%s", row, err, stdout.String())
		}
		if issued+refused != 40 || oversold != issued-10 || lost != issued-(10-remaining) {
			t.Errorf("row %q does not add up in\n%s", row, stdout.String())
		}
		if got, want := oversold > 0 && lost > 0, row == "without lock"; got != want {
			t.Errorf("row %q: got lost updates %t, want %t in\n%s", row, got, want, stdout.String())
		}
	}
}

// sieve is a backend that excludes no other process: memory under another name.
type sieve struct{ *memory.Driver }

func (s sieve) Info() driver.Info {
	info := s.Driver.Info()
	info.Name = "sieve"
	return info
}

func init() {
	driver.Register("sieve", func(context.Context, *driver.Config) (driver.Driver, error) { return sieve{memory.New(nil)}, nil })
}

func TestExitStatus(t *testing.T) {
	for _, test := range []struct {
		args   string
		status int
		stderr string // a part of it
	}{
		{"-moment 1ms", 0, ""},
		{"-h", 0, "-moment"},
		{"-url sieve:// -procs 4", 1, "coupon: with lock, want issued=50 refused=50 remaining=0\n"},
		{"-url redisson://127.0.0.1:1", 1, "connection refused"},
		{"-nonsense", 2, "-nonsense"},
		{"nonsense", 2, `"nonsense"`},
		{"-buyers 0", 2, "-buyers"},
		{"-coupons -1", 2, "-coupons"},
		{"-moment -1s", 2, "-moment"},
		{"-procs 0", 2, "-procs"},
		{"-procs 3 -buyers 2", 2, "-procs"},
		{"-procs 2", 2, "coupon: memory:// is a backend inside one process"},
		{"-url nonsense", 2, "URL"},
		{"-url nonsense://", 2, "registered: memory"},
		{"-url memory://?nonsense=1", 2, "nonsense"},
		{"-url redisson://user:" + testenv.PasswordMark + "@127.0.0.1:99999", 2, "port"},
	} {
		t.Run(strings.ReplaceAll(test.args, testenv.PasswordMark, "..."), func(t *testing.T) {
			status, stdout, stderr := testenv.Execute(t, strings.Fields(test.args)...)
			if status != test.status {
				t.Errorf("exit status: got %d, want %d", status, test.status)
			}
			if !strings.Contains(stderr, test.stderr) || strings.Contains(stderr, testenv.PasswordMark) || test.stderr == "" && stderr != "" {
				t.Errorf("standard error: got %q, want text with %q and without a password", stderr, test.stderr)
			}
			switch {
			case test.status == 0 && test.stderr == "":
				checkSuccess(t, 100, 50, 0, stdout, stderr)
			case strings.Contains(test.args, "sieve"):
				checkOversold(t, stdout)
			case stdout != "":
				t.Errorf("standard output: got %q, want nothing", stdout)
			}
		})
	}
}

func checkOversold(t *testing.T, stdout string) {
	t.Helper()
	var issued, refused, remaining int
	last := stdout[strings.LastIndex(stdout, "\nwith lock: ")+1:]
	if _, err := fmt.Sscanf(last, "with lock: issued=%d refused=%d remaining=%d\n", &issued, &refused, &remaining); err != nil {
		t.Errorf("last line: got %q (%v), want the result", last, err)
	}
	if issued <= 50 || issued+refused != 100 {
		t.Errorf("last line: got %q, want more coupons issued than existed", last)
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	server := testenv.Redis(t)
	server.Freeze()
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-url", "redisson://" + server.Addr, "-connect", "200ms"}, &stdout, &stderr)
	if got, want := stderr.String(), "deadline exceeded"; status != 1 || stdout.Len() > 0 || !strings.Contains(got, want) {
		t.Errorf("got status %d, standard output %q, standard error %q; want 1, nothing, and %q", status, &stdout, got, want)
	}
}

func TestREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.Redis(t)
	commands := regexp.MustCompile(`(?m)^go run ./examples/coupon(.*)$`).FindAllStringSubmatch(string(readme), -1)
	if len(commands) == 0 {
		t.Error("the page contains no commands")
	}
	for _, command := range commands {
		var stdout, stderr bytes.Buffer
		args := strings.Fields(strings.ReplaceAll(command[1], "127.0.0.1:6379", server.Addr))
		if status := run(t.Context(), args, &stdout, &stderr); status != 0 {
			t.Errorf("%s: got status %d, want 0; standard error:\n%s", command[0], status, &stderr)
		}
	}
}
