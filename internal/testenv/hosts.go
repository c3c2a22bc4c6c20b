package testenv

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
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

// host is the machine that a server runs on.
type host struct {
	ip    string
	enter []string // start of the command line of each server on the host
}

// loopback is the host of all servers that are not on [Hosts].
var loopback = host{ip: "127.0.0.1"}

// command returns the command line of a server on the host.
func (h host) command(argv ...string) []string {
	return append(h.enter[:len(h.enter):len(h.enter)], argv...)
}

// Hosts are separate machines for servers. Each has an address that the test
// can reach, and links to the others that can go silent. A host is a network
// namespace that exists as long as there is a process in it. One more namespace
// is the switch between them. The kernel removes all of them when the test
// binary ends. The methods may be called concurrently, and fail the test on
// errors.
type Hosts struct {
	tb    testing.TB
	hosts []host

	mu     sync.Mutex
	silent map[[2]int]bool // keyed by the numbers of the sender and the receiver
}

// The networks of Hosts are parts of 198.18.0.0/15, which is reserved for tests
// of networks. Each has 16 addresses.
const (
	networks    = 1 << 17 / 16
	mostOfHosts = 13 // the 16 addresses without the first, the last, and the address of the test
)

// NewHosts makes n hosts, numbered from 0. It requires Linux, root and the
// program ip. If one of these is missing, NewHosts skips the test, or fails it
// if CI is set.
func NewHosts(tb testing.TB, n int) *Hosts {
	tb.Helper()
	switch {
	case runtime.GOOS != "linux" || os.Getuid() != 0:
		untested(tb, "hosts for servers need Linux and root")
	case n > mostOfHosts:
		tb.Fatalf("%d hosts, of at most %d", n, mostOfHosts)
	}
	ip, nsenter := need(tb, "ip", "iproute2"), need(tb, "nsenter", "util-linux")
	h := &Hosts{tb: tb, silent: make(map[[2]int]bool)}
	center := newNetwork(tb)
	link, network := joinNetwork(tb, ip, center)
	// The end of the namespaces would have the same effect a little later.
	tb.Cleanup(func() { _ = exec.Command(ip, "link", "delete", link).Run() })
	enter := func(pid int) []string { return []string{nsenter, fmt.Sprintf("--net=/proc/%d/ns/net", pid)} }

	const all = "198.%d.%d.%d"
	address := func(i int) string { return fmt.Sprintf(all, 18+network>>12, network>>4&0xff, network&0xf<<4+1+i) }
	test := n // the number of the test's own address
	batch(tb, []string{ip},
		"address add "+address(test)+"/28 dev "+link,
		"link set "+link+" address "+hardware(test)+" up")
	inside := []string{"link add switch type bridge", "link set switch up", "link set test master switch up"}
	for i := range n {
		pid := newNetwork(tb)
		port := "host" + strconv.Itoa(i)
		batch(tb, []string{ip}, fmt.Sprintf("link add eth0 address %s netns %d type veth peer name %s netns %d", hardware(i), pid, port, center))
		inside = append(inside, "link set "+port+" master switch up")
		own := []string{"link set lo up", "link set eth0 up", "address add " + address(i) + "/28 dev eth0"}
		for k := range n + 1 {
			if k != i {
				own = append(own, neighbor(address(k), hardware(k)))
			}
		}
		at := host{ip: address(i), enter: enter(pid)}
		batch(tb, at.command(ip), own...)
		h.hosts = append(h.hosts, at)
	}
	batch(tb, append(enter(center), ip), inside...)
	return h
}

// Silence drops everything that one host sends to another, over existing and
// new connections, without an error on either side. The opposite direction
// still works.
func (h *Hosts) Silence(from, to int) {
	h.tb.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent[[2]int{from, to}] = true
	h.direct(from, to, nowhere)
}

// Of returns the number of the host with an address, which may end with a port.
func (h *Hosts) Of(addr string) int {
	h.tb.Helper()
	ip, _, _ := strings.Cut(addr, ":")
	i := slices.IndexFunc(h.hosts, func(at host) bool { return at.ip == ip })
	if i < 0 {
		h.tb.Fatalf("no host has the address %s", addr)
	}
	return i
}

// Reaches reports whether a connection from a host to an address succeeds soon.
// A connection needs both directions.
func (h *Hosts) Reaches(from int, addr string) bool {
	h.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	argv := h.hosts[from].command("bash", "-c", ": >/dev/tcp/"+strings.Replace(addr, ":", "/", 1))
	return exec.CommandContext(ctx, argv[0], argv[1:]...).Run() == nil
}

// Heal ends all silence. Dropped data arrives when it is retransmitted.
func (h *Hosts) Heal() {
	h.tb.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for link := range h.silent {
		h.direct(link[0], link[1], hardware(link[1]))
		delete(h.silent, link)
	}
}

// direct makes a host send packets for another host to a hardware address.
func (h *Hosts) direct(from, to int, lladdr string) {
	h.tb.Helper()
	batch(h.tb, h.hosts[from].command("ip"), neighbor(h.hosts[to].ip, lladdr))
}

// nowhere is a hardware address that no host has.
const nowhere = "02:00:00:00:00:ff"

// hardware returns the hardware address of a host, or of the test for the
// number after the last host.
func hardware(i int) string { return fmt.Sprintf("02:00:00:00:01:%02x", i) }

// neighbor sets a host's entry for another host's hardware address. The kernel
// then never queries it, so silence in one direction does not block responses
// in the other.
func neighbor(ip, lladdr string) string {
	return "neighbor replace " + ip + " lladdr " + lladdr + " dev eth0 nud permanent"
}

// newNetwork makes a network namespace and returns the process that keeps it
// alive.
func newNetwork(tb testing.TB) (pid int) {
	tb.Helper()
	keeper := exec.Command("sleep", "infinity")
	ownNetwork(keeper)
	p, err := startProcess(keeper)
	if err != nil {
		tb.Fatalf("network namespace: %v", err)
	}
	tb.Cleanup(p.kill)
	return keeper.Process.Pid
}

// joinNetwork links the test to a namespace. It returns the name of the local
// end and the number of its network. No other process on this machine can use
// that network as long as a link with this name exists.
func joinNetwork(tb testing.TB, ip string, pid int) (link string, network int) {
	tb.Helper()
	for {
		network = mathrand.IntN(networks)
		link = fmt.Sprintf("dsync%d", network)
		out, err := exec.Command(ip, "link", "add", link, "type", "veth", "peer", "name", "test", "netns", strconv.Itoa(pid)).CombinedOutput()
		switch {
		case err == nil:
			return link, network
		case !strings.Contains(string(out), "File exists"):
			tb.Fatalf("ip link add: %v: %s", err, out)
		}
	}
}

// batch runs commands with the program ip.
func batch(tb testing.TB, ip []string, commands ...string) {
	tb.Helper()
	cmd := exec.Command(ip[0], append(ip[1:], "-batch", "-")...)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v: %s", strings.Join(commands, "; "), err, out)
	}
}

// Certificates is a certificate authority with two certificates that it has
// signed: one for servers on 127.0.0.1 and localhost, and one for clients. The
// files are PEM.
type Certificates struct {
	CAFile                        string
	ServerCertFile, ServerKeyFile string
	ClientCertFile, ClientKeyFile string

	// Client trusts the authority and presents the client certificate.
	Client *tls.Config
}

// NewCertificates makes certificates in a temporary directory. Each call
// creates its own certificate authority, so peers with certificates from
// different calls do not trust each other.
func NewCertificates(tb testing.TB) *Certificates {
	tb.Helper()
	dir := tb.TempDir()
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test authority"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	caKey := newKey(tb)
	c := &Certificates{CAFile: filepath.Join(dir, "ca.crt")}
	caDER := sign(tb, ca, ca, caKey, caKey)
	writePEM(tb, c.CAFile, "CERTIFICATE", caDER)

	issue := func(name string, serial int64, usage x509.ExtKeyUsage) (certFile, keyFile string) {
		key := newKey(tb)
		der := sign(tb, &x509.Certificate{
			SerialNumber: big.NewInt(serial),
			Subject:      pkix.Name{CommonName: name},
			NotBefore:    ca.NotBefore,
			NotAfter:     ca.NotAfter,
			KeyUsage:     x509.KeyUsageDigitalSignature,
			ExtKeyUsage:  []x509.ExtKeyUsage{usage},
			DNSNames:     []string{"localhost"},
			IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		}, ca, key, caKey)
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			tb.Fatal(err)
		}
		certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		writePEM(tb, certFile, "CERTIFICATE", der)
		writePEM(tb, keyFile, "PRIVATE KEY", keyDER)
		return certFile, keyFile
	}
	c.ServerCertFile, c.ServerKeyFile = issue("server", 2, x509.ExtKeyUsageServerAuth)
	c.ClientCertFile, c.ClientKeyFile = issue("client", 3, x509.ExtKeyUsageClientAuth)

	pair, err := tls.LoadX509KeyPair(c.ClientCertFile, c.ClientKeyFile)
	if err != nil {
		tb.Fatal(err)
	}
	authority, err := x509.ParseCertificate(caDER)
	if err != nil {
		tb.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	c.Client = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
	return c
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func sign(tb testing.TB, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func writePEM(tb testing.TB, path, kind string, der []byte) {
	tb.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
}
