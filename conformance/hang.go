package conformance

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strconv"
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

// checkLabel is the profiler label of a check's goroutines. A goroutine inherits the labels of its starter.
const checkLabel = "dsync.check"

// goroutines returns how many goroutines the check has, beside which others may run: in fake time all in its bubble, otherwise all with its label, which
// goroutines of timers lack.
func (e *env) goroutines() int {
	if !e.fakeTime {
		return labelled(checkLabel, e.id)
	}
	var own [256]byte
	header, _, _ := bytes.Cut(own[:runtime.Stack(own[:], false)], []byte("\n"))
	_, bubble, _ := bytes.Cut(header, []byte("synctest bubble "))
	buf := make([]byte, 8<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], append([]byte("synctest bubble "), bubble...))
}

// labelled counts the goroutines with a profiler label.
func labelled(name, value string) (n int) {
	var groups bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&groups, 1) // to memory
	label := fmt.Appendf(nil, "%q:%q", name, value)
	of := 0 // of the group, whose first line begins with their number
	for line := range bytes.Lines(groups.Bytes()) {
		switch {
		case bytes.HasPrefix(line, []byte("# labels: ")) && bytes.Contains(line, label):
			n += of
		case len(line) > 0 && '0' <= line[0] && line[0] <= '9':
			count, _, _ := bytes.Cut(line, []byte(" "))
			of, _ = strconv.Atoi(string(count))
		}
	}
	return n
}
