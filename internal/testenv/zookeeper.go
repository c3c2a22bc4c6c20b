package testenv

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// zookeeperJars are the libraries of Debian's packages zookeeper and
// libzookeeper-java that a server needs. The manifest of the first one names
// the others.
const zookeeperJars = "/usr/share/java/zookeeper.jar"

// ZooKeeperServer is a private ZooKeeper. It counts in ticks of 100 ms, and
// keeps sessions of 200 ms to 60 s.
type ZooKeeperServer struct {
	Server
}

// ZooKeeper starts a single ZooKeeper. Each line of settings is added to its
// configuration and overrides the defaults. A setting that begins with a dash
// is an argument of the virtual machine, such as -Xmx1g.
func ZooKeeper(tb testing.TB, settings ...string) *ZooKeeperServer {
	tb.Helper()
	return startZooKeeper(tb, loopback, settings)
}

func startZooKeeper(tb testing.TB, at host, settings []string) *ZooKeeperServer {
	tb.Helper()
	s := newZooKeeper(tb, at, 0, settings)
	s.launch()
	return s
}

// ZooKeeperEnsemble starts an ensemble of n servers, and returns when all of
// them have found a leader.
func ZooKeeperEnsemble(tb testing.TB, n int, settings ...string) []*ZooKeeperServer {
	tb.Helper()
	return zooKeeperEnsemble(tb, slices.Repeat([]host{loopback}, n), settings)
}

// ZooKeeperEnsembleOn is ZooKeeperEnsemble with a server on each host.
func ZooKeeperEnsembleOn(h *Hosts, settings ...string) []*ZooKeeperServer {
	h.tb.Helper()
	return zooKeeperEnsemble(h.tb, h.hosts, settings)
}

func zooKeeperEnsemble(tb testing.TB, hosts []host, settings []string) []*ZooKeeperServer {
	tb.Helper()
	n := len(hosts)
	var members []string
	for i, h := range hosts {
		members = append(members, fmt.Sprintf("server.%d=%s:%d:%d", i+1, h.ip, freePort(tb), freePort(tb)))
	}
	servers := make([]*ZooKeeperServer, n)
	started := make(chan error, n)
	for i, h := range hosts {
		servers[i] = newZooKeeper(tb, h, i+1, append(members[:n:n], settings...))
		go func() { // ends when the server answers, or by the guard of start
			s := &servers[i].Server
			s.mu.Lock()
			defer s.mu.Unlock()
			started <- s.start()
		}()
	}
	var failed error
	for range n {
		if err := <-started; err != nil {
			failed = err
		}
	}
	for _, s := range servers {
		tb.Cleanup(s.Kill)
	}
	if failed != nil {
		tb.Fatal(failed)
	}
	return servers
}

// newZooKeeper makes a server without starting it. The id is 0 outside of an
// ensemble.
func newZooKeeper(tb testing.TB, at host, id int, settings []string) *ZooKeeperServer {
	tb.Helper()
	java := need(tb, "java", "default-jre-headless")
	if _, err := os.Stat(zookeeperJars); err != nil {
		missing(tb, zookeeperJars, "zookeeper")
	}
	port := freePort(tb)
	dir := memoryDir(tb)
	config := append([]string{
		"tickTime=100", "initLimit=100", "syncLimit=20", "minSessionTimeout=200", "maxSessionTimeout=60000",
		"clientPortAddress=" + at.ip, "clientPort=" + strconv.Itoa(port), "dataDir=" + dir, "maxClientCnxns=0",
		"admin.enableServer=false", "4lw.commands.whitelist=*", "preAllocSize=1024", "quorumListenOnAllIPs=false",
	}, settings...)
	// The server does not live long enough to benefit from more.
	machine := at.command(java, "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dzookeeper.forceSync=no", "-Dzookeeper.jmx.log4j.disable=true")
	config = slices.DeleteFunc(config, func(line string) bool {
		argument := strings.HasPrefix(line, "-")
		if argument {
			machine = append(machine, line)
		}
		return argument
	})
	file := filepath.Join(dir, "zoo.cfg")
	if err := os.WriteFile(file, []byte(strings.Join(config, "\n")+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	if id > 0 {
		if err := os.WriteFile(filepath.Join(dir, "myid"), []byte(strconv.Itoa(id)), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	s := new(ZooKeeperServer)
	s.Server = Server{
		tb:    tb,
		name:  "zookeeper" + strconv.Itoa(id),
		Addr:  fmt.Sprintf("%s:%d", at.ip, port),
		log:   filepath.Join(dir, "log"),
		argv:  append(machine, "-cp", zookeeperJars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file),
		ready: s.serves,
	}
	return s
}

// serves makes one attempt to check whether the server accepts requests. A
// server that does not accept requests yet may never answer.
func (s *ZooKeeperServer) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	text, err := s.command(ctx, "srvr")
	if err == nil && !strings.Contains(text, "Mode: ") {
		err = fmt.Errorf("it says %q", text)
	}
	return err
}

// command sends one of the four-letter commands.
func (s *ZooKeeperServer) command(ctx context.Context, four string) (string, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := io.WriteString(c, four); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	return string(text), err
}

// Leads reports whether the server is the leader of its ensemble.
func (s *ZooKeeperServer) Leads() bool {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	text, err := s.command(ctx, "srvr")
	return err == nil && strings.Contains(text, "Mode: leader")
}

// Requests returns the number of requests, including pings, that the server has
// received since it started.
func (s *ZooKeeperServer) Requests() int64 {
	s.tb.Helper()
	return s.counter("zk_packets_received")
}

// Logged returns the number of transactions that the server has written to its
// log under the current leader, including refused ones.
func (s *ZooKeeperServer) Logged() int64 {
	s.tb.Helper()
	text := s.says("srvr")
	_, last, _ := strings.Cut(text, "\nZxid: 0x")
	last, _, _ = strings.Cut(last, "\n")
	zxid, err := strconv.ParseInt(last, 16, 64)
	if err != nil {
		s.tb.Fatalf("srvr tells no last transaction: %q", text)
	}
	return zxid & (1<<32 - 1)
}

// Watches returns the number of watches on the server.
func (s *ZooKeeperServer) Watches() int64 {
	s.tb.Helper()
	return s.counter("zk_watch_count")
}

// says returns the response to a four-letter command.
func (s *ZooKeeperServer) says(command string) string {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	text, err := s.command(ctx, command)
	if err != nil {
		s.tb.Fatal(err)
	}
	return text
}

// counter returns one of the figures that the server reports about itself.
func (s *ZooKeeperServer) counter(name string) int64 {
	s.tb.Helper()
	text := s.says("mntr")
	for line := range strings.Lines(text) {
		if count, ok := strings.CutPrefix(line, name+"\t"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
			if err != nil {
				s.tb.Fatal(err)
			}
			return n
		}
	}
	s.tb.Fatalf("mntr does not tell %s: %q", name, text)
	return 0
}

// curatorJar is the library of Debian's package libcurator-recipes-java. Its
// manifest names the others.
const curatorJar = "/usr/share/java/curator-recipes.jar"

// Curator compiles a Java program that uses Debian's Curator, and returns the
// command line that runs its class.
func Curator(tb testing.TB, source, class string) []string {
	tb.Helper()
	if _, err := os.Stat(curatorJar); err != nil {
		missing(tb, curatorJar, "libcurator-recipes-java")
	}
	return Java(tb, curatorJar, source, class)
}

// Java compiles a Java program, and returns the command line that runs its
// class.
func Java(tb testing.TB, classpath, source, class string) []string {
	tb.Helper()
	java, javac := need(tb, "java", "default-jre-headless"), need(tb, "javac", "default-jdk-headless")
	dir := tb.TempDir()
	if out, err := exec.Command(javac, "-cp", classpath, "-d", dir, source).CombinedOutput(); err != nil {
		tb.Fatalf("javac: %v: %s", err, out)
	}
	return []string{java, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", dir + ":" + classpath, class}
}
