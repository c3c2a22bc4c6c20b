package redlock

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

// roles are the functions that other processes of the tests run.
var roles = map[string]func(){"holder": holdForStop}

const nodesVariable = "REDLOCK_TEST_NODES"

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// holdForStop acquires a lock, reports when it holds it, and answers whether it
// still believes so whenever it is asked.
func holdForStop() {
	c, err := dsync.Open(context.Background(), "redlock://"+os.Getenv(nodesVariable)+settled, &dsync.Options{TTL: time.Second})
	exitOn(err)
	l, err := c.Lock(context.Background(), "stopped")
	exitOn(err)
	fmt.Println("held")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(l.Err() == nil)
	}
}

// TestFrozenHolder stops a process that holds a lock for longer than its TTL:
// another client is granted the lock, and the process knows this when it
// continues.
func TestFrozenHolder(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, 5)
	p := testenv.Spawn(t, "holder", nodesVariable+"="+strings.Join(addresses(nodes), ","))
	if got := p.Line(); got != "held" {
		t.Fatalf("holder: %s", got)
	}
	p.Stop()
	c := dsyncOn(t, nodes)
	l, err := c.Lock(t.Context(), "stopped")
	if err != nil {
		t.Fatal(err)
	}
	p.Send("?")
	p.Cont()
	if got := p.Line(); got != "false" {
		t.Errorf("a holder that was frozen for longer than its TTL believes that it holds the lock: %s", got)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("the frozen holder took the lock from the next holder: %v", err)
	}
}
