package testenv

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// leakGuard is how long goroutines that are about to end may take. It is no expectation.
const leakGuard = 10 * time.Second

// NoLeaks is the second half of a TestMain: it runs the tests, and fails if a goroutine stays behind that none of the functions in
// except runs, each with its package: "net/http.(*Server).Serve".
func NoLeaks(m *testing.M, except ...string) {
	code := m.Run()
	if left := awaitGoroutines(except, leakGuard); code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%d goroutines stay behind:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// awaitGoroutines returns the stacks of goroutines that have not ended in time. The runtime tells of no end of a goroutine.
func awaitGoroutines(except []string, atMost time.Duration) (left []string) {
	for deadline, pause := time.Now().Add(atMost), time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if left = goroutines(except); len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(pause)
	}
}

// goroutines returns the stacks of all goroutines but the calling one, that of package os/signal, which has no end, and those that run
// a function of except.
func goroutines(except []string) (stacks []string) {
	all := make([]byte, 1<<20)
	for n := 0; ; all = make([]byte, 2*len(all)) {
		if n = runtime.Stack(all, true); n < len(all) {
			all = all[:n]
			break
		}
	}
	for _, stack := range strings.Split(string(all), "\n\n")[1:] { // the first is the calling one
		if !runs(stack, except) && !runs(stack, []string{"os/signal.loop"}) {
			stacks = append(stacks, strings.TrimSpace(stack))
		}
	}
	return stacks
}

// runs says whether a goroutine is inside one of the functions: they begin a line of its stack, with their arguments.
func runs(stack string, functions []string) bool {
	for _, f := range functions {
		if strings.Contains(stack, "\n"+f+"(") {
			return true
		}
	}
	return false
}
