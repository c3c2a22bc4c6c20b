package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func tryOpen(ctx context.Context, format string, args ...any) error {
	d, _, err := driver.Open(ctx, fmt.Sprintf(format, args...))
	if err == nil {
		err = d.Close(ctx)
	}
	return err
}

func TestMalformedURLs(t *testing.T) {
	for query, want := range map[string]string{
		"?nmaes=flat":                            "unknown parameter nmaes",
		"?names=short":                           "parameter names: not one of plain, flat",
		"?value=text":                            "parameter value: not one of record, note",
		"?order=any":                             "parameter order: not one of client, fifo",
		"?roundup=yes":                           "parameter roundup",
		"?tls_ca=x":                              "tls=true",
		"?tls=true&tls_ca=/does/not/exist":       "tls_ca",
		"?tls=true&tls_cert=x":                   "tls_key",
		"?tls=true&tls_cert=/none&tls_key=/none": "tls_cert and tls_key",
		"/%00":                                   "NUL",
	} {
		err := tryOpen(guard(t), "etcd://127.0.0.1:1%s", query)
		wantText(t, query, err, want)
	}
	err := tryOpen(guard(t), "etcd://user@127.0.0.1:1")
	wantText(t, "user without password", err, "given together")
}

// TestOrder checks that all callers share one order only if the URL requests
// this.
func TestOrder(t *testing.T) {
	s := testenv.Etcd(t)
	for query, want := range map[string]driver.Order{"": driver.FIFOByClient, "?order=client&require=fair": driver.FIFOByClient, "?order=fifo&require=fifo": driver.FIFO} {
		c, err := dsync.Open(guard(t), "etcd://"+s.Addr+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Info().Order; got != want {
			t.Errorf("%q: got %v, want %v", query, got, want)
		}
		c.Close(guard(t))
	}
	_, err := dsync.Open(guard(t), "etcd://"+s.Addr+"?require=fifo", nil)
	wantErr(t, "require=fifo without order=fifo", err, errors.ErrUnsupported)
}

func TestServerOutOfReach(t *testing.T) {
	start := time.Now()
	password := testenv.Password() + "/&"
	err := tryOpen(guard(t), "etcd://user:%s@127.0.0.1:1/p", url.PathEscape(password))
	wantErr(t, "refused connection", err, driver.ErrUnavailable)
	wantText(t, "refused connection", err, "etcd://user@127.0.0.1:1/p", "connection refused")
	if strings.Contains(err.Error(), testenv.PasswordMark) {
		t.Errorf("the password is in the error: %v", err)
	}
	if took := time.Since(start); took > hangGuard/2 {
		t.Errorf("a refused connection took %v", took)
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, user := range []string{"", "user:" + testenv.Password() + "@"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err = tryOpen(ctx, "etcd://%s%s", user, silent.Addr())
		cancel()
		wantErr(t, "silent server", err, driver.ErrUnavailable, context.DeadlineExceeded)
	}
}

// secure gives the user app the rights that docs/backends lists, and makes the
// server require authentication. secure returns the password of root.
func secure(tb testing.TB, s *testenv.EtcdServer, password string) (root string) {
	tb.Helper()
	for line := range strings.Lines(drivertest.Recipe(tb, "**etcd**")) {
		words := strings.Fields(strings.ReplaceAll(line, "app:password", "app:"+password))
		if out, err := exec.Command(s.Ctl, append([]string{"--endpoints", s.Addr}, words[1:]...)...).CombinedOutput(); err != nil {
			tb.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	c := userClient(tb, s.Addr)
	ctx := guard(tb)
	root = testenv.Password()
	_, err1 := c.UserAdd(ctx, "root", root)
	_, err2 := c.UserGrantRole(ctx, "root", "root")
	_, err3 := c.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		tb.Fatal(err)
	}
	return root
}

// TestPasswordChanges replaces a password while locks are being acquired.
func TestPasswordChanges(t *testing.T) {
	s := testenv.Etcd(t)
	file, password := filepath.Join(t.TempDir(), "password"), testenv.Password()
	write := func() {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	root := newClient(t, clientv3.Config{Endpoints: []string{s.Addr}, DialTimeout: hangGuard, Username: "root", Password: secure(t, s, password)})
	change := func() {
		t.Helper()
		password = testenv.Password()
		if _, err := root.UserChangePassword(t.Context(), "app", password); err != nil {
			t.Fatal(err)
		}
	}
	c, err := dsync.Open(t.Context(), "etcd://app@"+s.Addr+"/locks/?password_file="+file, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	var grants atomic.Int64
	var ended atomic.Bool
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() {
			for !ended.Load() && !t.Failed() {
				lease, err := c.Lock(guard(t), "a"+strconv.Itoa(i%2))
				if err == nil {
					err = lease.Unlock(guard(t))
				}
				if err != nil {
					t.Errorf("with a changing password: %v", err)
				}
				grants.Add(1)
			}
		})
	}
	for range 2 {
		start := grants.Load()
		testenv.Eventually(t, func() bool { return grants.Load() > start+20 }, "locks are granted")
		change()
		write()
	}
	start := grants.Load()
	testenv.Eventually(t, func() bool { return grants.Load() > start+20 }, "locks are granted after the changes")
	ended.Store(true)
	workers.Wait()
	change()
	if err := c.Ping(t.Context()); !errors.Is(err, dsync.ErrUnavailable) || strings.Contains(err.Error(), testenv.PasswordMark) {
		t.Errorf("Ping with a refused password: got %v, want ErrUnavailable, without the password", err)
	}
	write()
	testenv.Eventually(t, func() bool { return c.Ping(t.Context()) == nil }, "Ping succeeds")
}

// TestPingOfARefusedClient changes the password of a client that does not know
// of the change.
func TestPingOfARefusedClient(t *testing.T) {
	s := testenv.Etcd(t)
	password := testenv.Password()
	root := newClient(t, clientv3.Config{Endpoints: []string{s.Addr}, DialTimeout: hangGuard, Username: "root", Password: secure(t, s, password)})
	c, err := dsync.Open(t.Context(), "etcd://app:"+password+"@"+s.Addr+"/locks/", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := root.UserChangePassword(t.Context(), "app", testenv.Password()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Ping", c.Ping(t.Context()), fs.ErrPermission)
	if _, err := root.UserChangePassword(t.Context(), "app", password); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUserAndPassword(t *testing.T) {
	s := testenv.Etcd(t)
	password := testenv.Password() + "/&"
	escaped := url.PathEscape(password)
	secure(t, s, password)
	for _, who := range []string{"", "app:" + testenv.PasswordMark + "wrong@", "nobody:" + escaped + "@"} {
		err := tryOpen(guard(t), "etcd://%s%s/locks/", who, s.Addr)
		wantErr(t, "open", err, fs.ErrPermission)
		if strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("the password is in the error: %v", err)
		}
	}
	d := openURL(t, "etcd://app:%s@%s/locks/", escaped, s.Addr)
	l := acquire(t, d, request("a"))
	w := wait(t, d, request("a"))
	release(t, l)
	l = w.Granted(t)
	if got, err := d.Inspect(t.Context(), "a"); err != nil || !got.Held {
		t.Errorf("Inspect: got %+v, %v", got, err)
	}
	release(t, l)
	release(t, acquire(t, d, fixed(request("a"), 5*time.Second)))
	for _, mode := range []driver.Mode{driver.Read, driver.Write} {
		release(t, acquire(t, d, in(mode, noWait("a"))))
		l := acquire(t, d, in(mode, fixed(request("a"), 5*time.Second)))
		if err := l.Renew(t.Context(), 9*time.Second); err != nil {
			t.Errorf("Renew of a %v: %v", mode, err)
		}
		w := wait(t, d, request("a"))
		reader := wait(t, d, in(driver.Read, request("a")))
		release(t, l)
		release(t, w.Granted(t))
		release(t, reader.Granted(t))
	}

	elsewhere := openURL(t, "etcd://app:%s@%s/other/", escaped, s.Addr)
	for _, r := range []*driver.Request{request("a"), noWait("a")} {
		_, err := elsewhere.Acquire(t.Context(), r)
		wantErr(t, "Acquire without permission", err, fs.ErrPermission)
	}
	_, err := elsewhere.Inspect(t.Context(), "a")
	wantErr(t, "Inspect without permission", err, fs.ErrPermission)
	wantErr(t, "ForceUnlock without permission", elsewhere.ForceUnlock(t.Context(), "a"), fs.ErrPermission)
}

func TestTLS(t *testing.T) {
	certs, strangers := testenv.NewCertificates(t), testenv.NewCertificates(t)
	s := testenv.EtcdTLS(t, certs)
	files := func(ca, pair *testenv.Certificates) string {
		return fmt.Sprintf("tls=true&tls_ca=%s&tls_cert=%s&tls_key=%s", ca.CAFile, pair.ClientCertFile, pair.ClientKeyFile)
	}
	d := openURL(t, "etcd://%s?%s", s.Addr, files(certs, certs))
	release(t, acquire(t, d, request("a")))
	d = openURL(t, "etcd://%s?%s&tls_server_name=localhost", s.Addr, files(certs, certs))
	release(t, acquire(t, d, request("a")))
	for what, query := range map[string]string{
		"plain":                 "",
		"unknown authority":     files(strangers, certs),
		"stranger":              files(certs, strangers),
		"no client certificate": "tls=true&tls_ca=" + certs.CAFile,
		"wrong name":            files(certs, certs) + "&tls_server_name=example.com",
	} {
		wantErr(t, what, tryOpen(guard(t), "etcd://%s?%s", s.Addr, query), driver.ErrUnavailable)
	}
	plain := testenv.Etcd(t)
	wantErr(t, "TLS to a plain server", tryOpen(guard(t), "etcd://%s?tls=true", plain.Addr), driver.ErrUnavailable)
}

func TestSeveralEndpoints(t *testing.T) {
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://127.0.0.1:1,%s", s.Addr)
	for range 5 {
		release(t, acquire(t, d, request("a")))
	}
}

func TestNoTokens(t *testing.T) {
	s := testenv.Etcd(t)
	d := openURL(t, "etcd://%s?fenced=false", s.Addr)
	l := acquire(t, d, request("a"))
	if first, n := l.Tokens(); first != 0 || n != 0 || d.Info().Fencing != driver.None {
		t.Errorf("got %d, %d, want no tokens", first, n)
	}
	release(t, l)
}

func TestPackagedServer(t *testing.T) {
	t.Parallel()
	s := testenv.PackagedEtcd(t)
	c := userClient(t, s.Addr)
	d := openURL(t, "etcd://%s/p/", s.Addr)
	if got := d.Info().MinTTL; got != time.Second {
		t.Errorf("MinTTL: got %v, want 1s", got)
	}
	handed, err := etcd.New(c, &etcd.Options{Prefix: "p/"})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, handed)
	r := request("a")
	acquire(t, d, r)
	w := wait(t, handed, fixed(request("a"), 5*time.Second))
	if err := handed.ForceUnlock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	l := w.Granted(t)
	wantErr(t, "loss", lostBy(t, r), driver.ErrRemoved)
	if err := l.Renew(t.Context(), 9*time.Second); err != nil {
		t.Errorf("Renew: %v", err)
	}
	release(t, l)
	kept := withTTL(request("a"), time.Second)
	l = acquire(t, d, kept)
	before := l.Expires()
	testenv.Eventually(t, func() bool { return l.Expires().After(before.Add(time.Second)) }, "the lease is kept alive")
	release(t, l)
}
