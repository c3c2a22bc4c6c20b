package zk_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCounterBesideCurator has processes of dsync and of Curator's InterProcessMutex add to a number in a file, under one lock.
func TestCounterBesideCurator(t *testing.T) {
	command := testenv.Curator(t, "../../test/interop/java-curator/Counter.java", "Counter")
	s := testenv.ZooKeeper(t)
	countTogether(t, s, func() []*testenv.Process {
		env := append(counterEnv(t, s), "COMMAND="+strings.Join(command, "\n"), "LOCK_PATH=/counter/one", "INCREMENTS="+strconv.Itoa(increments))
		var all []*testenv.Process
		for range processes {
			all = append(all, testenv.Spawn(t, "command", env...))
		}
		return all
	})
}

func init() {
	roles["command"] = func() { // becomes another program, which then ends as roles do
		command := strings.Split(os.Getenv("COMMAND"), "\n")
		fmt.Println(syscall.Exec(command[0], command, os.Environ()))
	}
}
