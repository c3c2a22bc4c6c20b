// Package curator tests the modes Read, Write and Permit of drivers/zk together
// with Curator's InterProcessReadWriteLock and InterProcessSemaphoreV2.
package curator

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

var (
	holds    = flag.Int("holds", 40, "how often each thread of TestFleet acquires the name")
	meetings = flag.Int("meetings", 3, "how often any two meet in TestReadersAndWriters, in each pair of modes")
)

// newest is a version of Curator in which a writing thread keeps its place when
// it continues as a reader. Versions before 5.5.0, like Debian's, do not do
// that.
const newest = "5.9.0"

// becomeJava turns a process of testenv.Spawn, which ends with the test, into
// the Java program.
func becomeJava() {
	command := strings.Split(os.Getenv("COMMAND"), separator)
	exitOn(syscall.Exec(command[0], command, os.Environ()))
}

const javaDir = "../java-curator"

// commands returns the command lines of a Java program by version of Curator.
func commands(t *testing.T, class string) map[string][]string {
	t.Helper()
	source := filepath.Join(javaDir, class+".java")
	return map[string][]string{
		"debian": testenv.Curator(t, source, class),
		newest:   testenv.Java(t, classpath(t), source, class),
	}
}

var asked sync.Mutex // held while querying Maven's repository

// classpath returns the class path of the newest Curator.
func classpath(t *testing.T) string {
	t.Helper()
	asked.Lock()
	defer asked.Unlock()
	file := filepath.Join("target", newest, "classpath")
	if text, err := os.ReadFile(filepath.Join(javaDir, file)); err == nil {
		return strings.TrimSpace(string(text))
	}
	maven, err := exec.LookPath("mvn")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("mvn is needed (package maven)")
	}
	cmd := exec.Command(maven, "-q", "-B", "-Dcurator.version="+newest, "dependency:build-classpath", "-Dmdep.outputFile="+file)
	cmd.Dir = javaDir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mvn dependency:build-classpath: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(javaDir, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// bed consists of a server, a name, and a file that the name protects.
type bed struct {
	*testing.T
	server *testenv.ZooKeeperServer
	users  *gozk.Conn
	java   []string
	name   string
	file   string
}

func newBed(t *testing.T, java []string, settings ...string) *bed {
	t.Helper()
	b := &bed{T: t, server: testenv.ZooKeeper(t, append(settings, "maxSessionTimeout=600000")...), java: java, file: filepath.Join(t.TempDir(), "numbers")}
	c, _, err := gozk.Connect([]string{b.server.Addr}, guard, gozk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b.users = c
	if err := os.WriteFile(b.file, fmt.Appendf(nil, "%020d", 0), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// on returns the bed with another name.
func (b *bed) on(name string) *bed {
	other := *b
	other.name = name
	return &other
}

// peers of a bed.
const (
	dsyncs = "dsync"
	javas  = "Java"
)

// peer starts a process whose sessions have the given length.
func (b *bed) peer(kind string, session time.Duration, env ...string) *peer {
	b.Helper()
	var command []string
	if kind == javas {
		command = b.java
	}
	env = append(env, "ADDR="+b.server.Addr, "LOCK_PATH=/"+b.name, "FILE="+b.file, fmt.Sprint("SESSION=", session.Milliseconds()))
	return startPeer(b.T, command, env...)
}

// contenders waits until the queue has n nodes.
func (b *bed) contenders(n int) {
	b.Helper()
	testenv.Eventually(b.T, func() bool {
		list, _, err := b.users.Children("/" + b.name)
		return err == nil && len(list) == n || n == 0 && errors.Is(err, gozk.ErrNoNode)
	}, fmt.Sprint(n, " stand in line"))
}

// waits checks that there is no outcome yet.
func (b *bed) waits(what string, answer <-chan string) {
	b.Helper()
	select {
	case outcome := <-answer:
		b.Errorf("%s does not wait: %s", what, outcome)
	default:
	}
}

// long is the length of a session that lasts for the whole test.
const long = 30 * time.Second

// TestReadersAndWriters makes a process of each library wait for a process of
// the other, in all modes, and measures how soon a waiter wakes up.
func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	for version, java := range commands(t, "ReadWrite") {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, java).on("meet")
			kinds := []string{dsyncs, javas}
			peers := map[string][2]*peer{}
			for _, kind := range kinds {
				peers[kind] = [2]*peer{b.peer(kind, long), b.peer(kind, long)}
			}
			took := map[string][]time.Duration{}
			for range *meetings {
				for _, holder := range kinds {
					for _, waiter := range kinds {
						what := holder + " holds, " + waiter + " waits"
						took[what] = append(took[what], b.meet(peers[holder][0], peers[waiter][1], what)...)
					}
				}
			}
			for what, took := range took {
				slices.Sort(took)
				t.Logf("%s: woken after %v at the median", what, took[len(took)/2])
			}
			b.share(peers[dsyncs][0], peers[javas][0])
			if version == newest {
				b.goOnReading(peers[javas][0], peers[dsyncs][0], peers[dsyncs][1])
			}
		})
	}
}

// meet makes one process hold the name and the other one wait, in the modes
// that exclude each other. It returns how soon the waiter woke up each time.
func (b *bed) meet(holder, waiter *peer, what string) (took []time.Duration) {
	for _, modes := range [][2]string{{"write", "read"}, {"read", "write"}, {"write", "write"}} {
		holder.do(b.T, "a", modes[0])
		waiting := waiter.begin("b", modes[1])
		b.contenders(2)
		b.waits(what, waiting)
		began := time.Now()
		released := holder.begin("a", "un"+modes[0])
		if outcome := await(b.T, what, waiting); outcome != "ok" {
			b.Fatalf("%s: %s", what, outcome)
		}
		took = append(took, time.Since(began))
		if outcome := await(b.T, what, released); outcome != "ok" {
			b.Fatalf("%s: %s", what, outcome)
		}
		waiter.do(b.T, "b", "un"+modes[1])
	}
	return took
}

// share makes both processes read at the same time, while a writer of each
// process waits for both readers.
func (b *bed) share(one, other *peer) {
	for _, writer := range []*peer{one, other} {
		one.do(b.T, "a", "read")
		other.do(b.T, "a", "read")
		waiting := writer.begin("w", "write")
		b.contenders(3)
		one.do(b.T, "a", "unread")
		b.contenders(2)
		b.waits("a writer behind a reader", waiting)
		other.do(b.T, "a", "unread")
		if outcome := await(b.T, "a writer behind readers", waiting); outcome != "ok" {
			b.Error(outcome)
		}
		writer.do(b.T, "w", "unwrite")
	}
}

// goOnReading makes a writing Curator thread continue as a reader with the
// number of its writer. Other readers are granted the name at the same time,
// but writers are not.
func (b *bed) goOnReading(java, reader, writer *peer) {
	java.do(b.T, "a", "write")
	reading := reader.begin("r", "read")
	b.contenders(2)
	writing := writer.begin("w", "write")
	b.contenders(3)
	java.do(b.T, "a", "read")
	b.contenders(4)
	b.waits("a reader behind a writer", reading)
	java.do(b.T, "a", "unwrite")
	if outcome := await(b.T, "a reader alongside a thread that continues to read", reading); outcome != "ok" {
		b.Error(outcome)
	}
	reader.do(b.T, "r", "unread")
	b.contenders(2)
	b.waits("a writer behind a thread that continues to read", writing)
	java.do(b.T, "a", "unread")
	if outcome := await(b.T, "a writer", writing); outcome != "ok" {
		b.Error(outcome)
	}
	writer.do(b.T, "w", "unwrite")
}

// TestVictims kills and freezes readers and writers of each library while a
// process of the other library waits.
func TestVictims(t *testing.T) {
	t.Parallel()
	bed := newBed(t, commands(t, "ReadWrite")[newest])
	survivors := map[string]string{javas: dsyncs, dsyncs: javas}
	const session = 2 * time.Second
	for victim, survivor := range survivors {
		for _, modes := range [][2]string{{"read", "write"}, {"write", "read"}} {
			for _, frozen := range []bool{false, true} {
				if victim == javas && frozen && modes[0] == "write" {
					continue // Java does not report it afterwards
				}
				name := fmt.Sprintf("%s-%s-%v", victim, modes[0], frozen)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					b := bed.on(name)
					b.T = t
					v, s := b.peer(victim, session), b.peer(survivor, long)
					v.do(t, "a", modes[0])
					waiting := s.begin("b", modes[1])
					b.contenders(2)
					began := time.Now()
					if frozen {
						v.Stop()
					} else {
						v.Kill()
					}
					if outcome := await(t, "the waiter for a victim", waiting); outcome != "ok" {
						t.Fatal(outcome)
					}
					t.Logf("granted %v after the end of the holder, whose session lasts %v", time.Since(began), session)
					if frozen && victim == dsyncs {
						v.Cont()
						if outcome := await(t, "release", v.begin("a", "un"+modes[0])); !strings.Contains(outcome, dsync.ErrLost.Error()) {
							t.Errorf("release by the frozen process: got %q, want %v", outcome, dsync.ErrLost)
						}
					}
					s.do(t, "b", "un"+modes[1])
				})
			}
		}
	}
}

// TestFleet makes processes of both libraries read and write a file
// concurrently, while some of them are killed and frozen. No update may be
// lost, and no reader may see half of an update.
func TestFleet(t *testing.T) {
	t.Parallel()
	for version, java := range commands(t, "ReadWrite") {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, java).on("fleet")
			const victims, session = 2, 2 * time.Second
			var all []*peer
			for _, kind := range []string{javas, dsyncs, javas, dsyncs} {
				lasts := long
				if len(all) < victims {
					lasts = session
				}
				all = append(all, b.peer(kind, lasts))
			}
			frozen := b.peer(dsyncs, session) // it only reads: nothing stops a frozen writer that resumes
			reads := frozen.begin("r", fmt.Sprint("reads ", 4**holds))
			var outcomes []<-chan string
			for i, p := range all {
				times := *holds
				if i < victims {
					times *= 1000
				}
				for thread, command := range map[string]string{"w1": "writes", "w2": "writes", "r1": "reads", "r2": "reads", "r3": "reads"} {
					if outcome := p.begin(thread, command+" "+strconv.Itoa(times)); i >= victims {
						outcomes = append(outcomes, outcome)
					}
				}
			}
			progress := func(n int64) { // of the live processes
				for _, p := range all[victims:] {
					from := p.wrote.Load()
					testenv.Eventually(t, func() bool { return p.wrote.Load() >= min(from+n, int64(2**holds)) }, "all write")
				}
			}
			progress(int64(*holds) / 4)
			frozen.Stop()
			for _, p := range all[:victims] {
				p.Kill()
			}
			progress(int64(*holds) / 4)
			frozen.Cont()
			for _, outcome := range append(outcomes, reads) {
				if got := await(t, "the work of the fleet", outcome); got != "ok" {
					t.Error(got)
				}
			}
			b.count(all, victims)
		})
	}
}

// count checks that the file contains each update. A killed process may have
// written without a report.
func (b *bed) count(all []*peer, killed int64) {
	b.Helper()
	var want int64
	for _, p := range all[:killed] {
		<-p.done // all output has been read
	}
	for _, p := range all {
		want += p.wrote.Load()
	}
	text, err := os.ReadFile(b.file)
	if err != nil {
		b.Fatal(err)
	}
	got, err := strconv.ParseInt(string(text[:digits]), 10, 64)
	if err != nil || got < want || got > want+killed {
		b.Errorf("updates: got %d, %v, want %d, or up to %d more", got, err, want, killed)
	}
	b.Logf("%d updates", got)
}
