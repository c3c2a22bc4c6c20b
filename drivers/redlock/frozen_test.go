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

// roles are what other processes of the tests do.
var roles = map[string]func(){"holder": holdForStop}

const nodesVariable = "REDLOCK_TEST_NODES"

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// holdForStop takes a lock, says when it has it, and tells whether it still
// believes so whenever it is asked.
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
// others get the lock, and it knows when it goes on.
func TestFrozenHolder(t *testing.T) {
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
		t.Errorf("the holder that was frozen took the lock from the next one: %v", err)
	}
}
