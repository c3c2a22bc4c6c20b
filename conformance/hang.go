package conformance

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
)

// goroutineID returns the number of the calling goroutine, as it stands in stack dumps.
func goroutineID() string {
	var buf [64]byte
	n := runtime.Stack(buf[:], false)
	id, _, _ := strings.Cut(strings.TrimPrefix(string(buf[:n]), "goroutine "), " ")
	return id
}

// stacks returns the stacks of the goroutines whose first line is meant.
func stacks(meant func(header string) bool) string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var found []string
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		header, _, _ := bytes.Cut(stack, []byte("\n"))
		if meant(string(header)) {
			found = append(found, string(stack))
		}
	}
	return strings.Join(found, "\n\n")
}

// stackOf returns the stack of the goroutine with this number.
func stackOf(id string) string {
	return stacks(func(header string) bool { return strings.HasPrefix(header, "goroutine "+id+" ") })
}

// leftBehind makes an error of the panic by which a bubble reports goroutines that were left behind. Other panics go on.
func leftBehind(p any) error {
	if !strings.HasPrefix(fmt.Sprint(p), "deadlock:") {
		panic(p)
	}
	return fmt.Errorf("goroutines are left after all clients were closed:\n%s", stacks(func(header string) bool {
		return strings.Contains(header, "synctest bubble")
	}))
}

// goroutines returns how many goroutines there are: in fake time in the bubble of the check, otherwise in the process, where other checks
// may run.
func (e *env) goroutines() int {
	if !e.fakeTime {
		return runtime.NumGoroutine()
	}
	var own [256]byte
	header, _, _ := bytes.Cut(own[:runtime.Stack(own[:], false)], []byte("\n"))
	_, bubble, _ := bytes.Cut(header, []byte("synctest bubble "))
	buf := make([]byte, 8<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], append([]byte("synctest bubble "), bubble...))
}
