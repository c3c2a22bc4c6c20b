package testenv

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func stayBehind(end <-chan struct{}) { <-end }

// leaks is a process with no goroutines but its own. It prints the number of
// leaks before it starts a goroutine, while the goroutine is running, again
// with an exception for the goroutine, and after the goroutine has ended with a
// small delay.
func leaks() {
	seen := func(atMost time.Duration, except ...string) { fmt.Println(len(awaitGoroutines(except, atMost))) }
	seen(leakGuard)
	end := make(chan struct{})
	go stayBehind(end)
	seen(0)
	seen(leakGuard, "github.com/go-dsync/dsync/internal/testenv.stayBehind")
	time.AfterFunc(20*time.Millisecond, func() { close(end) })
	seen(leakGuard)
}

func TestAwaitGoroutines(t *testing.T) {
	p := Spawn(t, "leaks")
	var got []string
	for range 4 {
		got = append(got, p.Line())
	}
	if got, want := strings.Join(got, " "), "0 1 0 0"; got != want {
		t.Errorf("leaked goroutines: got %s, want %s", got, want)
	}
}
