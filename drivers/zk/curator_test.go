package zk_test

import (
	"strings"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCounterBesideCurator has processes with dsync and with Curator's
// InterProcessMutex add to a number in a file under one lock.
func TestCounterBesideCurator(t *testing.T) {
	command := testenv.Curator(t, "../../test/interop/java-curator/Counter.java", "Counter")
	s := testenv.ZooKeeper(t)
	c := testenv.NewCounter(t)
	c.Spawn(4, "dsync", 500, 1, "ADDR="+s.Addr)
	c.Spawn(4, "curator", 500, 1, "ADDR="+s.Addr, "LOCK_PATH=/counter/one", "COMMAND="+strings.Join(command, "\n"))
	c.Run()
}
