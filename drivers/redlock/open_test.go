package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestOpenRefusesBadURLs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ url, want string }{
		{"redlock://", "no hosts"},
		{"redlock://a", "1 nodes, want an odd number"},
		{"redlock://a,b", "2 nodes, want an odd number"},
		{"redlock://a,b,c,d", "4 nodes, want an odd number"},
		{"redlock://a,b,a", "node a:6379 is given twice"},
		{"redlock://a,b,c/x", "the path is not the number of a database"},
		{"redlock://a,b,c/01", "the path is not the number of a database"},
		{"redlock://a,b,c?maxttl=0s", "parameter maxttl"},
		{"redlock://a,b,c?maxttl=1ms", "Options.MaxTTL is 1ms"},
		{"redlock://a,b,c?nodetimeout=5", "parameter nodetimeout"},
		{"redlock://a,b,c?durable=yes", "parameter durable"},
		{"redlock://a,b,c?evict=maybe", "parameter evict"},
		{"redlock://a,b,c?quorum=2", "unknown parameter quorum"},
		{"redlock://a,b,c?tls_ca=/x", "needs tls=true"},
		{"redlock://a,b,c?tls=true&tls_ca=/nowhere", "tls_ca"},
		{"redlock://u:" + testenv.Password() + "@a,b", "2 nodes"},
	} {
		_, err := tryOpen(test.url)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%s: got %v, want an error with %q", test.url, err, test.want)
		}
	}
	for require, want := range map[string]string{
		"fair": "not fair", "fifo": "order of arrival", "fenced": "no fencing tokens", "rw": "redlock has no read-write locks",
		"permits": "redlock has no permits, because a majority of the nodes does not keep a limit",
	} {
		nodes := startNodes(t, 3)
		_, err := tryOpen(nodes.url() + settled + "&require=" + require)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("require=%s: got %v, want errors.ErrUnsupported with %q", require, err, want)
		}
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	node := func(addresses ...string) rueidis.ClientOption { return rueidis.ClientOption{InitAddress: addresses} }
	for _, test := range []struct {
		nodes   []rueidis.ClientOption
		options *Options
		want    string
	}{
		{nil, nil, "0 nodes"},
		{[]rueidis.ClientOption{node("a"), node("b"), node()}, nil, "node 2 has 0 addresses"},
		{[]rueidis.ClientOption{node("a"), node("b", "c"), node("d")}, nil, "node 1 has 2 addresses"},
		{[]rueidis.ClientOption{node("a"), node("b"), node("b")}, nil, "node b is given twice"},
		{[]rueidis.ClientOption{node("a"), node("b"), node("c")}, &Options{MaxTTL: -1}, "Options.MaxTTL"},
		{[]rueidis.ClientOption{node("a"), node("b"), node("c")}, &Options{NodeTimeout: -1}, "Options.NodeTimeout"},
	} {
		if _, err := New(test.nodes, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
	}
}

func TestOpenRefusesServersThatAreNotIndependent(t *testing.T) {
	nodes := startNodes(t, 3)
	_, port, err := net.SplitHostPort(nodes[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	_, again := testenv.Wire(t, nodes[0].Addr)
	replica := testenv.Redis(t, "--replicaof", "127.0.0.1 "+port)
	evicting := testenv.Redis(t, "--maxmemory-policy", "allkeys-lru")
	cluster := testenv.Redis(t, "--cluster-enabled", "yes")
	for _, test := range []struct{ third, want string }{
		{again, "the same as that of node"},
		{replica.Addr, "is a replica of 127.0.0.1:" + port},
		{evicting.Addr, "maxmemory-policy is allkeys-lru"},
		{cluster.Addr, "node of a Redis Cluster"},
	} {
		_, err := tryOpen("redlock://" + nodes[0].Addr + "," + nodes[1].Addr + "," + test.third + settled)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "node 127.0.0.1:") {
			t.Errorf("%s: got %v, want an error with %q that names the node", test.third, err, test.want)
		}
	}
	openURL(t, "redlock://%s,%s,%s%s&evict=allow", nodes[0].Addr, nodes[1].Addr, evicting.Addr, settled)
}

func TestErrorOfYoungNodesNamesEachOnce(t *testing.T) {
	nodes := startNodes(t, 3)
	d := openURL(t, "%s", nodes.url())
	_, err := d.Acquire(t.Context(), noWait("x"))
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "it counts in") || strings.Count(err.Error(), "node 127.0.0.1:") != 1 {
		t.Errorf("got %v, want ErrUnavailable that names a node once, and says when it counts", err)
	}
}

func TestOpenNeedsAMajority(t *testing.T) {
	nodes := startNodes(t, 3)
	nodes[0].Kill()
	d := openURL(t, "%s", nodes.url()+settled)
	release(t, acquire(t, d, request("x")))
	nodes[1].Kill()
	if _, err := tryOpen(nodes.url() + settled); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "node 127.0.0.1:") {
		t.Errorf("with one node of three: got %v, want ErrUnavailable that names a node", err)
	}
	if _, err := d.Acquire(t.Context(), noWait("x")); !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("Acquire with one node of three: got %v, want ErrUnavailable", err)
	}
	nodes[1].Start()
	testenv.Eventually(t, func() bool {
		l, err := d.Acquire(t.Context(), noWait("x"))
		if err == nil {
			release(t, l)
		}
		return err == nil
	}, "the node is found again")
}

func TestOpenOfNodesThatDoNotAnswer(t *testing.T) {
	nodes := startNodes(t, 3)
	for _, s := range nodes {
		s.Freeze()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := driver.Open(ctx, nodes.url()+settled); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the error of the context", err)
	}
}

func TestOpenWithTLSAndPassword(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	password := testenv.Password() + "@ /"
	escaped := url.PathEscape(password)
	var nodes servers
	for range 3 {
		nodes = append(nodes, testenv.RedisTLS(t, certs, "--requirepass", password))
	}
	hosts := strings.TrimPrefix(nodes.url(), "redlock://")
	files := "&tls=true&tls_ca=" + certs.CAFile + "&tls_cert=" + certs.ClientCertFile + "&tls_key=" + certs.ClientKeyFile
	d := openURL(t, "redlock://:%s@%s%s%s", escaped, hosts, settled, files)
	release(t, acquire(t, d, request("x")))
	for _, wrong := range []string{testenv.Password(), ""} {
		_, err := tryOpen("redlock://:" + wrong + "@" + hosts + settled + files)
		if err == nil || strings.Contains(err.Error(), testenv.PasswordMark) || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a wrong password of %d bytes: got %v, want fs.ErrPermission without the password", len(wrong), err)
		}
	}
	strangers := testenv.NewCertificates(t)
	for what, parameters := range map[string]string{
		"no TLS":                "",
		"unknown authority":     "&tls=true&tls_ca=" + strangers.CAFile + "&tls_cert=" + certs.ClientCertFile + "&tls_key=" + certs.ClientKeyFile,
		"another host name":     files + "&tls_server_name=example.org",
		"no client certificate": "&tls=true&tls_ca=" + certs.CAFile,
		"stranger":              "&tls=true&tls_ca=" + certs.CAFile + "&tls_cert=" + strangers.ClientCertFile + "&tls_key=" + strangers.ClientKeyFile,
	} {
		_, err := tryOpen("redlock://:" + escaped + "@" + hosts + settled + parameters)
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", what, err)
		}
		ours := what == "unknown authority" || what == "another host name"
		if untrusted := new(tls.CertificateVerificationError); ours && !errors.As(err, &untrusted) {
			t.Errorf("%s: got %v, want a tls.CertificateVerificationError", what, err)
		}
	}
}

// TestPermissions gives a user exactly the rights that docs/backends lists.
func TestPermissions(t *testing.T) {
	nodes := startNodes(t, 3)
	password := testenv.Password()
	words := strings.Fields(drivertest.Recipe(t, "**Redis, `redlock://`**"))
	nodes.do(append([]string{"ACL", "SETUSER", "locker", "on", ">" + password}, words[slices.Index(words, "resetkeys"):]...)...)
	url := "redlock://locker:" + password + "@" + strings.TrimPrefix(nodes.url(), "redlock://") + settled
	a, b := openURL(t, "%s", url), openURL(t, "%s", url)
	l := acquire(t, a, request("lk:x"))
	if s, err := b.Inspect(t.Context(), "lk:x"); err != nil || !s.Held || s.Hold != l.request.Hold {
		t.Errorf("Inspect: got %+v, %v", s, err)
	}
	if err := l.Renew(t.Context(), testTTL); err != nil {
		t.Errorf("Renew: %v", err)
	}
	r := request("lk:x")
	w := make(chan *lease)
	go func() { w <- acquire(t, b, r) }()
	<-r.Events.(*events).waiting
	first := b.firstNode("lk:x")
	testenv.Eventually(t, func() bool { return nodes[first].SubscriberCount(channel("lk:x")) == 1 }, "the waiter listens")
	release(t, l)
	release(t, <-w)
	if _, err := a.Acquire(t.Context(), noWait("other")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a name without rights: got %v, want fs.ErrPermission", err)
	}
	nodes.awaitClear(t)
	l = acquire(t, a, request("lk:x"))
	nodes.do("ACL", "SETUSER", "locker", "-pexpireat")
	if err := l.Renew(t.Context(), testTTL); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Renew without the right to PEXPIREAT: got %v, want fs.ErrPermission", err)
	}
	nodes.do("ACL", "SETUSER", "locker", "+pexpireat")
	release(t, l)
	nodes.do("ACL", "SETUSER", "locker", "-info")
	if _, err := tryOpen(url); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "info") {
		t.Errorf("without the right to INFO: got %v, want fs.ErrPermission that names it", err)
	}
}
