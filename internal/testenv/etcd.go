package testenv

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// EtcdServer is a private etcd.
type EtcdServer struct {
	Server

	// Ctl is the path of the etcdctl that belongs to the server.
	Ctl string

	url  string // URL to which clients connect
	http *http.Client
}

// etcdRelease is an etcd version to start.
type etcdRelease struct {
	server, ctl string
	// arguments that save time if the data need not survive a failure of the
	// machine
	fast []string
}

func currentEtcd(tb testing.TB) etcdRelease {
	tb.Helper()
	return etcdRelease{etcdBinary(tb), etcdctlBinary(tb), []string{"--unsafe-no-fsync", "--bcrypt-cost", "4"}}
}

func packagedEtcd(tb testing.TB) etcdRelease {
	tb.Helper()
	return etcdRelease{need(tb, "etcd", "etcd-server"), need(tb, "etcdctl", "etcd-client"), []string{"--logger", "zap"}}
}

// Etcd starts an etcd of the current version, built from its Go module. It
// elects leaders and measures leases twice as fast as with the default
// settings, so that the shortest lease lasts a second. args are passed to etcd
// and override the defaults. The revision and counters of the server need not
// begin at 0.
func Etcd(tb testing.TB, args ...string) *EtcdServer {
	tb.Helper()
	start := func(tb testing.TB) *EtcdServer { return startEtcd(tb, loopback, currentEtcd(tb), nil, args) }
	if len(args) > 0 {
		return start(tb)
	}
	return lend(tb, "etcd", start)
}

// PackagedEtcd is like Etcd, but with the version of the operating system's
// package etcd-server. If the package is not installed, the test is skipped, or
// fails if CI is set.
func PackagedEtcd(tb testing.TB, args ...string) *EtcdServer {
	tb.Helper()
	return startEtcd(tb, loopback, packagedEtcd(tb), nil, args)
}

// EtcdTLS is like Etcd, but with a server that only listens with TLS. It uses
// the server certificate of certs, and requires client certificates of the same
// authority.
func EtcdTLS(tb testing.TB, certs *Certificates, args ...string) *EtcdServer {
	tb.Helper()
	return startEtcd(tb, loopback, currentEtcd(tb), certs.Client, append([]string{
		"--cert-file", certs.ServerCertFile, "--key-file", certs.ServerKeyFile,
		"--trusted-ca-file", certs.CAFile, "--client-cert-auth",
	}, args...))
}

func startEtcd(tb testing.TB, at host, release etcdRelease, tlsConfig *tls.Config, args []string) *EtcdServer {
	tb.Helper()
	s := newEtcd(tb, at, release, "etcd", freePort(tb), tlsConfig, args)
	s.launch()
	return s
}

// EtcdCluster starts a cluster of n servers of the current version and returns
// when all of them know a leader.
func EtcdCluster(tb testing.TB, n int, args ...string) []*EtcdServer {
	tb.Helper()
	return etcdCluster(tb, slices.Repeat([]host{loopback}, n), args)
}

// EtcdClusterOn is like EtcdCluster, but with a server on each host.
func EtcdClusterOn(h *Hosts, args ...string) []*EtcdServer {
	h.tb.Helper()
	return etcdCluster(h.tb, h.hosts, args)
}

func etcdCluster(tb testing.TB, hosts []host, args []string) []*EtcdServer {
	tb.Helper()
	n, release := len(hosts), currentEtcd(tb)
	peers, members := make([]int, n), make([]string, n)
	for i, h := range hosts {
		peers[i] = freePort(tb)
		members[i] = fmt.Sprintf("etcd%d=http://%s:%d", i, h.ip, peers[i])
	}
	servers := make([]*EtcdServer, n)
	started := make(chan error, n)
	for i := range n {
		servers[i] = newEtcd(tb, hosts[i], release, fmt.Sprintf("etcd%d", i), peers[i], nil,
			append([]string{"--initial-cluster", strings.Join(members, ",")}, args...))
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

// newEtcd makes a server without starting it.
func newEtcd(tb testing.TB, at host, release etcdRelease, name string, peerPort int, tlsConfig *tls.Config, args []string) *EtcdServer {
	tb.Helper()
	dir, port := memoryDir(tb), freePort(tb)
	scheme := "http"
	if tlsConfig != nil {
		scheme = "https"
	}
	s := &EtcdServer{
		Ctl:  release.ctl,
		url:  fmt.Sprintf("%s://%s:%d", scheme, at.ip, port),
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}},
	}
	peer := fmt.Sprintf("http://%s:%d", at.ip, peerPort)
	argv := append(at.command(release.server,
		"--name", name, "--data-dir", filepath.Join(dir, "data"),
		"--listen-client-urls", s.url, "--advertise-client-urls", s.url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", name+"="+peer,
		"--heartbeat-interval", "100", "--election-timeout", "500",
		"--log-level", "warn",
	), release.fast...)
	s.Server = Server{
		tb:    tb,
		name:  name,
		Addr:  fmt.Sprintf("%s:%d", at.ip, port),
		log:   filepath.Join(dir, "log"),
		argv:  append(argv, args...),
		ready: s.healthy,
	}
	return s
}

// memoryDir returns a temporary directory, in memory if the system supports
// that, because not every release can disable fsync.
func memoryDir(tb testing.TB) string {
	tb.Helper()
	dir, err := serverDir(tb, "/dev/shm", "dsync-memory-")
	if err != nil {
		return tb.TempDir()
	}
	return dir
}

// healthy makes one attempt to check whether the server has a leader and
// answers requests.
func (s *EtcdServer) healthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/health", nil)
	if err != nil {
		return err
	}
	response, err := s.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var health struct{ Health, Reason string }
	if err := json.NewDecoder(response.Body).Decode(&health); err != nil {
		return err
	}
	if health.Health != "true" {
		return fmt.Errorf("health is %q %s", health.Health, health.Reason)
	}
	return nil
}

// clean implements spareable. It fails if the test has left state that tests
// rarely change, such as a user.
func (s *EtcdServer) clean(ctx context.Context) error {
	var left struct {
		Users, Roles, Alarms, Members []json.RawMessage
		Leases                        []struct{ ID string }
	}
	for _, list := range []string{"auth/user/list", "auth/role/list", "maintenance/alarm", "cluster/member/list", "lease/leases"} {
		if err := s.call(ctx, list, "{}", &left); err != nil {
			return err
		}
	}
	if len(left.Users)+len(left.Roles)+len(left.Alarms) > 0 || len(left.Members) != 1 {
		return errors.New("users, roles, alarms or members remain")
	}
	for _, l := range left.Leases {
		if err := s.call(ctx, "lease/revoke", fmt.Sprintf(`{"ID":%q}`, l.ID), nil); err != nil {
			return err
		}
	}
	return s.call(ctx, "kv/deleterange", `{"key":"AA==","range_end":"AA=="}`, nil) // deletes all keys
}

// call sends a request in JSON.
func (s *EtcdServer) call(ctx context.Context, method, body string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v3/"+method, strings.NewReader(body))
	if err != nil {
		return err
	}
	response, err := s.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", method, response.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// Requests returns the number of requests of each kind ("Txn", "DeleteRange")
// that the server has handled since it started. The kind "ranges" counts reads
// of keys, including reads in conditions and parts of transactions. A stream
// counts once it has ended.
func (s *EtcdServer) Requests() map[string]int64 {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		s.tb.Fatal(err)
	}
	response, err := s.http.Do(request)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer response.Body.Close()
	counts := make(map[string]int64)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		method, value := "ranges", ""
		if labels, ok := strings.CutPrefix(lines.Text(), "grpc_server_handled_total{"); ok {
			_, method, _ = strings.Cut(labels, `grpc_method="`)
			method, _, _ = strings.Cut(method, `"`)
			_, value, _ = strings.Cut(labels, "} ")
		} else if value, ok = strings.CutPrefix(lines.Text(), "etcd_mvcc_range_total "); !ok {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.tb.Fatalf("metrics: %q: %v", lines.Text(), err)
		}
		counts[method] += int64(n)
	}
	if err := lines.Err(); err != nil {
		s.tb.Fatal(err)
	}
	return counts
}

// The directories, relative to the root of this module, of the modules that
// specify the versions of the servers that are built.
const (
	etcdModule   = "test/etcdserver"
	consulModule = "test/consulserver"
)

// buildGuard bounds the build of a server from source. It does not predict how
// long a build takes.
const buildGuard = 10 * time.Minute

// built caches the outcome of each build in this process.
var built sync.Map // package path to func() (string, error)

// etcdBinary returns the path of the current etcd server, and etcdctlBinary the
// path of the command line client that belongs to it. They are built from the
// Go module once per version, into the user's cache directory. If they cannot
// be built, the test fails if CI is set, and is skipped otherwise.
func etcdBinary(tb testing.TB) string {
	tb.Helper()
	return builtBinary(tb, etcdModule, "go.etcd.io/etcd/server/v3", "etcd")
}

func etcdctlBinary(tb testing.TB) string {
	tb.Helper()
	return builtBinary(tb, etcdModule, "go.etcd.io/etcd/etcdctl/v3", "etcdctl")
}

func builtBinary(tb testing.TB, module, pkg, name string) string {
	tb.Helper()
	build, _ := built.LoadOrStore(pkg, sync.OnceValues(func() (string, error) { return buildBinary(module, pkg, name) }))
	path, err := build.(func() (string, error))()
	if err == nil {
		return path
	}
	const text = "%s is UNTESTED: %s cannot be built: %v"
	if os.Getenv("CI") != "" {
		tb.Fatalf(text, tb.Name(), name, err)
	}
	tb.Skipf(text, tb.Name(), name, err)
	return ""
}

func buildBinary(module, pkg, name string) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "..", "..", module)
	ctx, cancel := context.WithTimeout(context.Background(), buildGuard)
	defer cancel()
	version, err := goCommand(ctx, dir, "list", "-m", "-f", "{{.Version}}", pkg)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "dsync-test", name+"-"+version+"-"+runtime.GOOS+"-"+runtime.GOARCH)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(path), "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	if _, err := goCommand(ctx, dir, "build", "-o", filepath.Join(scratch, name), pkg); err != nil {
		return "", err
	}
	// A concurrent build produces the same file.
	return path, os.Rename(filepath.Join(scratch, name), path)
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off") // the module has its own versions
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
