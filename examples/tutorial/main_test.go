//go:build unix

package main

import (
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m, map[string]func(){"worker": func() {
		log.SetOutput(os.Stdout)
		main()
	}})
}

// TestTutorial suspends a worker that holds the lock, and expects the store to
// refuse its write after another worker has written.
func TestTutorial(t *testing.T) {
	service := httptest.NewServer(counter())
	defer service.Close()
	env := []string{"LOCKS=redisson://" + testenv.Redis(t).Addr + "?ttl=1s", "COUNTER=" + service.Listener.Addr().String()}
	suspended := testenv.Spawn(t, "worker", env...)
	await(t, suspended, "acquired")
	suspended.Stop()
	other := testenv.Spawn(t, "worker", env...)
	await(t, other, "acquired")
	await(t, other, "acquired") // and so it has written
	suspended.Cont()
	await(t, suspended, "refused")
}

// await reads lines of a process until one contains a word.
func await(t *testing.T, p *testenv.Process, word string) {
	t.Helper()
	for !strings.Contains(p.Line(), word) {
	}
}
