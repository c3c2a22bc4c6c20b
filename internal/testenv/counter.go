package testenv

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Counter is a number in a file, to which processes add under a lock. Reading and writing it is not one step, so it comes out too
// small if two of them ever have the lock at a time.
type Counter struct {
	tb   testing.TB
	file string
	all  []*Process
	want int
}

// NewCounter returns a Counter of 0.
func NewCounter(tb testing.TB) *Counter {
	tb.Helper()
	c := &Counter{tb: tb, file: filepath.Join(tb.TempDir(), "counter")}
	if err := os.WriteFile(c.file, []byte("0"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return c
}

const (
	counterFile  = "DSYNC_TEST_COUNTER_FILE"
	counterHolds = "DSYNC_TEST_COUNTER_HOLDS"
	counterEach  = "DSYNC_TEST_COUNTER_EACH"
)

// Spawn adds processes whose role calls [Count]. Each takes the lock holds times, in the short form of the tests a fifth of that, and
// adds one each times while it has it.
func (c *Counter) Spawn(processes int, role string, holds, each int, env ...string) {
	c.tb.Helper()
	holds = Briefly(holds/5, holds)
	env = append(env, counterFile+"="+c.file, fmt.Sprint(counterHolds, "=", holds), fmt.Sprint(counterEach, "=", each))
	for range processes {
		c.all = append(c.all, Spawn(c.tb, role, env...))
		c.want += holds * each
	}
}

// Run has all of them begin together, waits for them, and fails the test unless each addition is in the file.
func (c *Counter) Run() {
	c.tb.Helper()
	for _, p := range c.all {
		if got := p.Line(); got != "ready" {
			c.tb.Fatalf("a process of the role %q said %q, want ready", p.role, got)
		}
	}
	for _, p := range c.all {
		p.Send("go")
	}
	for _, p := range c.all {
		for range p.Lines { // until it ends, however long that takes here
		}
		if err := p.Wait(); err != nil {
			c.tb.Errorf("a process of the role %q: %v", p.role, err)
		}
	}
	got, err := readNumber(c.file)
	if err != nil {
		c.tb.Fatal(err)
	}
	if got != c.want {
		c.tb.Errorf("counted %d, want %d", got, c.want)
	}
}

// Count is what a process of a [Counter] does. The lock is taken by a call of lock and given back by what that returns.
func Count(lock func() (unlock func() error, err error)) {
	if err := count(lock); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func count(lock func() (unlock func() error, err error)) error {
	file := os.Getenv(counterFile)
	holds, err := strconv.Atoi(os.Getenv(counterHolds))
	if err != nil {
		return err
	}
	each, err := strconv.Atoi(os.Getenv(counterEach))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	for range holds {
		unlock, err := lock()
		if err != nil {
			return err
		}
		for range each {
			if err := addOne(file); err != nil {
				return err
			}
		}
		if err := unlock(); err != nil {
			return err
		}
	}
	return nil
}

func addOne(file string) error {
	n, err := readNumber(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, strconv.AppendInt(nil, int64(n)+1, 10), 0o600)
}

func readNumber(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}
