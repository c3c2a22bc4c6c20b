package zk_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

const password, escaped = testenv.PasswordMark + ":/&", testenv.PasswordMark + "%3A%2F%26"

func tryOpen(ctx context.Context, format string, args ...any) error {
	d, _, err := driver.Open(ctx, fmt.Sprintf(format, args...))
	if err == nil {
		err = d.Close(ctx)
	}
	return err
}

func withoutPassword(t *testing.T, err error) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), testenv.PasswordMark) {
		t.Errorf("the password is in the error: %v", err)
	}
}

func TestMalformedURLs(t *testing.T) {
	for rest, want := range map[string]string{
		"?chroot=/a":        "unknown parameter chroot",
		"?acl=mine":         "parameter acl:",
		"?order=lot":        "parameter order:",
		"?node=latch":       "parameter node:",
		"?value=text":       "parameter value:",
		"?acl=creator":      "needs a user",
		"?tls_ca=x":         "tls=true",
		"/a//b":             `chroot "/a//b"`,
		"/a/..":             `chroot "/a/.."`,
		"/a%00":             "chroot",
		"?ttl=0s":           "ttl",
		"/%EE%80%80?ttl=1s": "chroot",
	} {
		wantText(t, rest, tryOpen(guard(t), "zk://127.0.0.1:1%s", rest), want)
	}
	err := tryOpen(guard(t), "zk://:%s@127.0.0.1:1", escaped)
	wantText(t, "no user", err, "without a user")
	withoutPassword(t, err)
}

// TestTTLOfTheProgramIsThatOfTheSession counts the sessions of a client by
// their connections.
func TestTTLOfTheProgramIsThatOfTheSession(t *testing.T) {
	s := testenv.ZooKeeper(t)
	link, addr := testenv.Wire(t, s.Addr)
	c, err := dsync.Open(guard(t), "zk://"+addr, &dsync.Options{TTL: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Lock(guard(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return link.Traffic().Open == 1 }, "a client that holds a lock has a single connection")
	if err := errors.Join(l.Unlock(guard(t)), c.Close(guard(t))); err != nil {
		t.Error(err)
	}
}

func TestServerOutOfReach(t *testing.T) {
	err := tryOpen(guard(t), "zk://user:%s@127.0.0.1:1,localhost:1/p", escaped)
	wantErr(t, "refused connection", err, driver.ErrUnavailable)
	wantText(t, "refused connection", err, "zk://user@127.0.0.1:1,localhost:1/p", "connection refused")
	withoutPassword(t, err)

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantErr(t, "silent server", tryOpen(ctx, "zk://%s", silent.Addr()), driver.ErrUnavailable, context.DeadlineExceeded)
}

func TestFirstHostOutOfReach(t *testing.T) {
	s := testenv.ZooKeeper(t)
	d := openURL(t, "zk://127.0.0.1:1,%s", s.Addr)
	release(t, acquire(t, d, request("a")))
}

func TestBoundsOfTTLs(t *testing.T) {
	s := testenv.ZooKeeper(t, "maxSessionTimeout=10000")
	for _, ttl := range []string{"100ms", "30s"} {
		err := tryOpen(guard(t), "zk://%s?ttl=%s", s.Addr, ttl)
		wantErr(t, ttl, err, errors.ErrUnsupported)
		wantText(t, ttl, err, ttl, "200ms", "10s")
	}
	d := openURL(t, "zk://%s", s.Addr)
	if i := d.Info(); i.MinTTL != 200*time.Millisecond || i.MaxTTL != 10*time.Second {
		t.Errorf("bounds: got %v to %v, want 200ms to 10s", i.MinTTL, i.MaxTTL)
	}
	_, err := d.Acquire(t.Context(), withTTL(request("a"), time.Minute))
	wantErr(t, "Acquire", err, errors.ErrUnsupported)
	for _, ttl := range []time.Duration{200 * time.Millisecond, 10 * time.Second} {
		release(t, acquire(t, d, withTTL(request("a"), ttl)))
	}
}

func TestUserAlone(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	mine := openURL(t, "zk://user:%s@%s/app", escaped, s.Addr)
	l := acquire(t, mine, request("a"))
	if _, _, err := c.Children("/app/a"); err != gozk.ErrNoAuth {
		t.Errorf("another user reads the nodes: got %v, want %v", err, gozk.ErrNoAuth)
	}
	_, acl, err := c.GetACL("/app")
	if err == nil {
		t.Errorf("another user reads the ACL: got %v", acl)
	}
	for what, err := range map[string]error{
		"another password": tryOpen(guard(t), "zk://user:%s@%s/app", testenv.Password(), s.Addr),
		"no user":          tryOpen(guard(t), "zk://%s/app", s.Addr),
	} {
		wantErr(t, what, err, fs.ErrPermission)
		wantText(t, what, err, "/app")
	}
	stranger := openURL(t, "zk://%s", s.Addr)
	for _, r := range []*driver.Request{request("app/a"), noWait("app/a"), request("app/b")} {
		_, err := stranger.Acquire(t.Context(), r)
		wantErr(t, r.Name, err, fs.ErrPermission)
	}
	again := openURL(t, "zk://user:%s@%s/app", escaped, s.Addr)
	w := wait(t, again, request("a"))
	release(t, l)
	release(t, w.Granted(t))
	everybody := openURL(t, "zk://user:%s@%s/open?acl=open", escaped, s.Addr)
	l = acquire(t, everybody, request("a"))
	w = wait(t, openURL(t, "zk://%s/open", s.Addr), request("a"))
	release(t, l)
	release(t, w.Granted(t))
}

// TestPasswordChanges replaces a password while locks are being acquired, as
// docs/security.md describes.
func TestPasswordChanges(t *testing.T) {
	s := testenv.ZooKeeper(t)
	file, old, next := filepath.Join(t.TempDir(), "password"), testenv.Password(), testenv.Password()
	write := func(passwords ...string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(strings.Join(passwords, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(old)
	open := func(from string) *zk.Driver {
		return openURL(t, "zk://user@%s/app?ttl=5s&password_file=%s", s.Addr, from)
	}
	first := open(file)
	first.PasswordsEvery(20 * time.Millisecond)
	var grants atomic.Int64
	var ended atomic.Bool
	var workers sync.WaitGroup
	work := func(d *zk.Driver, ttl time.Duration) {
		for i := range 2 {
			workers.Go(func() {
				for !ended.Load() {
					l, err := d.Acquire(guard(t), withTTL(request("a"+strconv.Itoa(i)), ttl))
					if err == nil {
						err = l.Release(guard(t))
					}
					if err != nil {
						t.Errorf("with a changing password: %v", err)
						return
					}
					grants.Add(1)
				}
			})
		}
	}
	more := func() {
		t.Helper()
		start := grants.Load()
		testenv.Eventually(t, func() bool { return grants.Load() > start+50 || t.Failed() }, "locks are granted")
	}
	work(first, 4*time.Second) // by a session that checks often
	more()
	write(old, next)
	testenv.Eventually(t, func() bool { return knowsUser(t, s.Addr, next, first) }, "nodes belong to both passwords")
	c := userClient(t, s.Addr)
	for _, p := range []string{old, next} {
		if err := c.AddAuth("digest", []byte("user:"+p)); err != nil {
			t.Fatal(err)
		}
	}
	giveToUser(t, c, "/app")
	write(next)
	second := open(file)
	work(second, 5*time.Second)
	more()
	ended.Store(true)
	workers.Wait()
	withoutPassword(t, tryOpen(guard(t), "zk://user:%s@%s/app", testenv.Password(), s.Addr))
}

// TestPingOfARefusedClient gives the nodes to another user.
func TestPingOfARefusedClient(t *testing.T) {
	s := testenv.ZooKeeper(t)
	url := "zk://user:" + escaped + "@" + s.Addr + "/app"
	release(t, acquire(t, openURL(t, "%s", url), request("a")))
	client, err := dsync.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	if err := client.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	c := userClient(t, s.Addr)
	if err := c.AddAuth("digest", []byte("user:"+password)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetACL("/app", gozk.DigestACL(gozk.PermAll, "user", testenv.Password()), -1); err != nil {
		t.Fatal(err)
	}
	err = client.Ping(t.Context())
	wantErr(t, "Ping", err, fs.ErrPermission)
	withoutPassword(t, err)
}

// knowsUser reports whether the nodes that d makes belong to the user with a
// password.
func knowsUser(t *testing.T, addr, password string, d *zk.Driver) bool {
	t.Helper()
	l := acquire(t, d, withTTL(request("probe"), 4*time.Second))
	defer release(t, l)
	c := userClient(t, addr)
	defer c.Close()
	if err := c.AddAuth("digest", []byte("user:"+password)); err != nil {
		t.Fatal(err)
	}
	_, _, err := c.Children("/app/probe")
	return err == nil
}

// giveToUser does the same as setAcl -R.
func giveToUser(t *testing.T, c *gozk.Conn, path string) {
	t.Helper()
	if _, err := c.SetACL(path, gozk.AuthACL(gozk.PermAll), -1); err != nil && err != gozk.ErrNoNode {
		t.Fatal(err)
	}
	children, _, err := c.Children(path)
	if err != nil && err != gozk.ErrNoNode {
		t.Fatal(err)
	}
	for _, child := range children {
		giveToUser(t, c, path+"/"+child)
	}
}

func TestTLS(t *testing.T) {
	certs, strangers := testenv.NewCertificates(t), testenv.NewCertificates(t)
	s := testenv.ZooKeeper(t)
	front, elsewhere := testenv.Front(t, "127.0.0.1", s.Addr, certs), testenv.Front(t, "127.0.0.2", s.Addr, certs)
	files := func(ca, pair *testenv.Certificates) string {
		return fmt.Sprintf("tls=true&tls_ca=%s&tls_cert=%s&tls_key=%s", ca.CAFile, pair.ClientCertFile, pair.ClientKeyFile)
	}
	for _, url := range []string{
		front + "?" + files(certs, certs),
		elsewhere + "?" + files(certs, certs) + "&tls_server_name=localhost",
	} {
		d := openURL(t, "zk://%s", url)
		l := acquire(t, d, request("a"))
		w := wait(t, d, request("a"))
		release(t, l)
		release(t, w.Granted(t))
	}
	for what, url := range map[string]string{
		"no TLS":                front,
		"unknown authority":     front + "?" + files(strangers, certs),
		"stranger":              front + "?" + files(certs, strangers),
		"no client certificate": front + "?tls=true&tls_ca=" + certs.CAFile,
		"wrong name":            front + "?" + files(certs, certs) + "&tls_server_name=example.com",
		"wrong host":            elsewhere + "?" + files(certs, certs),
		"TLS to a plain server": s.Addr + "?" + files(certs, certs),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		wantErr(t, what, tryOpen(ctx, "zk://%s", url), driver.ErrUnavailable)
		cancel()
	}
}

func TestNotesThatAreTooLong(t *testing.T) {
	s := testenv.ZooKeeper(t)
	d := openURL(t, "zk://%s", s.Addr)
	r := request("a")
	r.Note = strings.Repeat("x", 64<<10)
	_, err := d.Acquire(t.Context(), r)
	wantText(t, "a long note", err, "owner and note", "65536")
	release(t, acquire(t, d, noWait("a")))
}

func TestNewRefusesNonsense(t *testing.T) {
	for want, o := range map[string]*zk.Options{
		"chroot":   {Chroot: "a"},
		"password": {Password: password},
		"colon":    {User: "a:b"},
		"TTL":      {TTL: -1},
	} {
		_, err := zk.New(t.Context(), []string{"127.0.0.1:1"}, o)
		wantText(t, want, err, want)
		withoutPassword(t, err)
	}
	_, err := zk.New(t.Context(), nil, nil)
	wantText(t, "no hosts", err, "hosts")
}

func TestCloseTwice(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "zk://%s", s.Addr)
	for i := range 10 {
		acquire(t, d, request(fmt.Sprint("a", i)))
	}
	if err := d.Close(guard(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got := children(t, c, "/"); len(got) != 1 {
		t.Errorf("nodes after Close: got %q, want none of ours", got)
	}
	if err := d.Close(guard(t)); err != driver.ErrClosed {
		t.Errorf("second Close: got %v, want %v", err, driver.ErrClosed)
	}
}

// TestOpenOfABusyServer has a session of the shortest kind end before it is
// granted.
func TestOpenOfABusyServer(t *testing.T) {
	s := testenv.ZooKeeper(t)
	var refused atomic.Bool
	d, err := zk.New(guard(t), []string{s.Addr}, &zk.Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if refused.Swap(true) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		client, server := net.Pipe()
		go func() { // ends when the connection is closed
			defer server.Close()
			if _, err := io.ReadFull(server, make([]byte, 48+12)); err != nil {
				return
			}
			server.Write(append([]byte{0, 0, 0, 36}, make([]byte, 36)...)) // version 0, timeout 0, no session
		}()
		return client, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	release(t, acquire(t, d, request("a")))
}

// hook is a connection that calls sent after each write.
type hook struct {
	net.Conn
	sent func()
}

func (h hook) Write(b []byte) (int, error) {
	n, err := h.Conn.Write(b)
	h.sent()
	return n, err
}

// TestOpenThatIsCutOff ends the context after the request for the longest
// session of the server. The session must not stay for its timeout.
func TestOpenThatIsCutOff(t *testing.T) {
	s := testenv.ZooKeeper(t, "maxSessionTimeout=600000")
	for range 10 {
		ctx, cancel := context.WithCancel(guard(t))
		dials := 0
		_, err := zk.New(ctx, []string{s.Addr}, &zk.Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if dials++; err != nil || dials < 2 {
				return c, err
			}
			return hook{c, cancel}, nil
		}})
		wantErr(t, "Open", err, context.Canceled)
		cancel()
	}
	testenv.Eventually(t, func() bool { return strings.Contains(four(t, s, "mntr"), "zk_global_sessions\t0\n") }, "no session is left")
}
