package testenv

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
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
// libzookeeper-java that a server needs. The manifest of the first library
// names the others.
const zookeeperJars = "/usr/share/java/zookeeper.jar"

// ZooKeeperServer is a private ZooKeeper. It counts in ticks of 100 ms and
// keeps sessions of 200 ms to 60 s.
type ZooKeeperServer struct {
	Server
}

// ZooKeeper starts a single ZooKeeper. Each line of settings is added to its
// configuration and overrides the defaults. A setting that begins with a dash
// is an argument of the virtual machine, such as -Xmx1g. The counters of the
// server need not begin at 0.
func ZooKeeper(tb testing.TB, settings ...string) *ZooKeeperServer {
	tb.Helper()
	start := func(tb testing.TB) *ZooKeeperServer { return startZooKeeper(tb, loopback, settings) }
	if slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, "dataDir=") }) {
		return start(tb) // the server is not shared, because the directory belongs to the test
	}
	return lend(tb, "zookeeper "+strings.Join(settings, " "), start)
}

func startZooKeeper(tb testing.TB, at host, settings []string) *ZooKeeperServer {
	tb.Helper()
	s := newZooKeeper(tb, at, 0, settings)
	s.launch()
	return s
}

// ZooKeeperEnsemble starts an ensemble of n servers and returns when all of
// them have found a leader.
func ZooKeeperEnsemble(tb testing.TB, n int, settings ...string) []*ZooKeeperServer {
	tb.Helper()
	return zooKeeperEnsemble(tb, slices.Repeat([]host{loopback}, n), settings)
}

// ZooKeeperEnsembleOn is like ZooKeeperEnsemble, but with a server on each
// host.
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
		go func() { // returns when the server answers or start times out
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
	java, jars := need(tb, "java", "default-jre-headless"), zookeeperJars
	if path := provided("zookeeper"); path != "" {
		jars = path + "/*"
	} else if _, err := os.Stat(jars); err != nil {
		missing(tb, jars, "zookeeper")
	}
	port := freePort(tb)
	dir := memoryDir(tb)
	config := append([]string{
		"tickTime=100", "initLimit=100", "syncLimit=20", "minSessionTimeout=200", "maxSessionTimeout=60000",
		"clientPortAddress=" + at.ip, "clientPort=" + strconv.Itoa(port), "dataDir=" + dir, "maxClientCnxns=0",
		"admin.enableServer=false", "4lw.commands.whitelist=*", "preAllocSize=1024", "quorumListenOnAllIPs=false",
	}, settings...)
	// The server does not live long enough to benefit from more memory.
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
		argv:  append(machine, "-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file),
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

// Version returns the version of the server, such as "3.8.0".
func (s *ZooKeeperServer) Version() string {
	s.tb.Helper()
	_, version, _ := strings.Cut(s.says("srvr"), "Zookeeper version: ")
	version, _, _ = strings.Cut(version, "-")
	return version
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
		s.tb.Fatalf("srvr does not report the last transaction: %q", text)
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

// clean implements spareable. It fails if a session is left, which would end in
// a later test.
func (s *ZooKeeperServer) clean(ctx context.Context) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for { // the server has not yet noticed that the connections of clients are closed
		text, err := s.command(ctx, "mntr")
		if err != nil {
			return err
		}
		// the command itself has the remaining connection
		one := strings.Contains(text, "zk_num_alive_connections\t1\n")
		if one && !strings.Contains(text, "zk_global_sessions\t0\n") {
			return errors.New("a session remains")
		}
		if one && strings.Contains(text, "zk_watch_count\t0\n") {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c, err := dialJute(ctx, s.Addr)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	for _, path := range []string{"", "/zookeeper/quota"} {
		if err := c.removeBelow(path); err != nil {
			return err
		}
	}
	_, err = c.request(-11, nil) // closeSession
	return err
}

// jute is a session that sends one request after another in the protocol of
// ZooKeeper.
type jute struct {
	net.Conn
	xid uint32
}

func dialJute(ctx context.Context, addr string) (*jute, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &jute{Conn: conn}
	// version, last transaction
	hello := make([]byte, 4+8, 44)
	hello = binary.BigEndian.AppendUint32(hello, 10000)                           // timeout in ms
	hello = append(hello, make([]byte, 8)...)                                     // session
	hello = append(binary.BigEndian.AppendUint32(hello, 16), make([]byte, 16)...) // password
	if _, err = c.exchange(hello); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// exchange sends a frame and returns the next frame from the server.
func (c *jute) exchange(frame []byte) ([]byte, error) {
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c, answer)
	return answer, err
}

// request returns the body of the answer.
func (c *jute) request(operation int32, body []byte) ([]byte, error) {
	c.xid++
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, c.xid), uint32(operation))
	answer, err := c.exchange(append(head, body...))
	if err != nil {
		return nil, err
	}
	if len(answer) < 16 {
		return nil, io.ErrUnexpectedEOF
	}
	if code := int32(binary.BigEndian.Uint32(answer[12:])); code != 0 {
		return nil, fmt.Errorf("error %d", code)
	}
	return answer[16:], nil
}

// removeBelow deletes all nodes below a path, except the server's own nodes.
func (c *jute) removeBelow(path string) error {
	text := func(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }
	answer, err := c.request(8, append(text(cmp.Or(path, "/")), 0)) // getChildren, without a watch
	if err != nil {
		return err
	}
	for answer = answer[4:]; len(answer) > 0; {
		n := 4 + binary.BigEndian.Uint32(answer)
		child := path + "/" + string(answer[4:n])
		answer = answer[n:]
		if child == "/zookeeper" {
			continue
		}
		if err := c.removeBelow(child); err != nil {
			return err
		}
		if _, err := c.request(2, append(text(child), 0xff, 0xff, 0xff, 0xff)); err != nil {
			// delete, in any version
			return err
		}
	}
	return nil
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
	s.tb.Fatalf("mntr does not report %s: %q", name, text)
	return 0
}

// curatorJar is the library of Debian's package libcurator-recipes-java. Its
// manifest names the others.
const curatorJar = "/usr/share/java/curator-recipes.jar"

// Curator compiles a Java program that uses Debian's Curator and returns the
// command line that runs its class.
func Curator(tb testing.TB, source, class string) []string {
	tb.Helper()
	if _, err := os.Stat(curatorJar); err != nil {
		missing(tb, curatorJar, "libcurator-recipes-java")
	}
	return Java(tb, curatorJar, source, class)
}

// Java compiles a Java program and returns the command line that runs its
// class. It compiles each version of a program once, into the user's cache
// directory.
func Java(tb testing.TB, classpath, source, class string) []string {
	tb.Helper()
	java, javac := need(tb, "java", "default-jre-headless"), need(tb, "javac", "default-jdk-headless")
	dir, err := compiledJava(javac, classpath, source)
	if err != nil {
		tb.Fatal(err)
	}
	return []string{java, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", dir + ":" + classpath, class}
}

func compiledJava(javac, classpath, source string) (dir string, err error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	version := sha256.Sum256(append([]byte(javac+"\n"+classpath+"\n"), text...))
	dir = filepath.Join(cache, "dsync-test", fmt.Sprintf("java-%x", version[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(dir), "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	if out, err := exec.Command(javac, "-cp", classpath, "-d", scratch, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("javac: %w: %s", err, out)
	}
	if err := os.Rename(scratch, dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // the directory is not from a concurrent compilation
			return "", err
		}
	}
	return dir, nil
}
