package history

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const writerEnv = "DSYNC_TEST_HISTORY_WRITER" // path of the history and label of the process

// TestHistoryWriterProcess is what the processes of the tests below run. Otherwise it has nothing to do.
func TestHistoryWriterProcess(t *testing.T) {
	path, label, ok := strings.Cut(os.Getenv(writerEnv), ":")
	if !ok {
		return
	}
	h, err := Create(path, label)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100_000 {
		h.Note("event")
		if n == 500 {
			fmt.Println("running")
		}
	}
	t.Fatal("nobody killed this process")
}

func TestHistoryOfKilledProcesses(t *testing.T) {
	own, err := Create(t.TempDir()+"/own", "own")
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{own.out.Name()}
	for _, label := range []string{"w1", "w2"} {
		path := t.TempDir() + "/history"
		paths = append(paths, path)
		cmd := exec.Command(os.Args[0], "-test.run=^TestHistoryWriterProcess$")
		cmd.Env = append(os.Environ(), writerEnv+"="+path+":"+label)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		own.Note("before " + label)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "running\n" {
			t.Errorf("process %s says %q, %v", label, line, err)
		}
		off := own.Fault(FaultKill, label)
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Errorf("process %s was not killed", label)
		}
		off()
	}
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	events, err := Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	// One clock for all: what the processes wrote lies between what this one wrote before and after.
	written := map[string]int{}
	now := ""
	for _, e := range events {
		switch {
		case e.Proc == "own":
			now = e.Text
			if e.Kind == KindFaultOff {
				now = ""
			}
		case now != "before "+e.Proc && now != e.Proc:
			t.Fatalf("an event of %s at the wrong time, after %q: %v", e.Proc, now, e)
		default:
			written[e.Proc]++
		}
	}
	for _, label := range []string{"w1", "w2"} {
		if written[label] < 500 {
			t.Errorf("%d events of process %s survived, want 500 at least", written[label], label)
		}
	}
	for _, reason := range Judge(events, Bounds{}).Invalid {
		if strings.Contains(reason, "not killed") {
			t.Error(reason)
		}
	}
}
