package redisson

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestOpenRefusesBadURLs(t *testing.T) {
	for _, test := range []struct{ url, want string }{
		{"redisson://h?fair=yes", "parameter fair"},
		{"redisson://h?mode=clustre", "mode"},
		{"redisson://h1,h2", "mode=single takes one host"},
		{"redisson://h?mode=sentinel", "master="},
		{"redisson://h?master=main", "mode=sentinel"},
		{"redisson://h?sentinel_password=" + testenv.Password(), "mode=sentinel"},
		{"redisson://h/x", "database"},
		{"redisson://h/-1", "database"},
		{"redisson://h/1/2", "database"},
		{"redisson://h/3?mode=cluster", "database 3"},
		{"redisson://h?pubsub=loud", "pubsub"},
		{"redisson://h?fence=none", "fence"},
		{"redisson://h?fenced=maybe", "fenced"},
		{"redisson://h?waitreplicas=-1", "waitreplicas"},
		{"redisson://h?fair=true&write=true", "write=true"},
		{"redisson://h?fair=true&order=lifo", "order"},
		{"redisson://h?order=fifo", "fair=true"},
		{"redisson://h?fair=true&require=fifo", "order=fifo"},
		{"redisson://h?require=fifo", "fair=true"},
		{"redisson://h?waitlimit=1", "waitlimit"},
		{"redisson://h?evict=yes", "evict"},
		{"redisson://h?tls_ca=/ca.pem", "parameter tls_ca needs tls=true"},
		{"redisson://h?tls_server_name=x", "parameter tls_server_name needs tls=true"},
		{"redisson://h?tls_insecure_skip_verify=true", "parameter tls_insecure_skip_verify needs tls=true"},
		{"redisson://h?tls=true&tls_ca=/does/not/exist", "tls_ca"},
		{"redisson://h?tls=true&tls_cert=/does/not/exist", "tls_key"},
		{"redisson://h?tls=perhaps", "tls"},
		{"redisson://h?ttl=x", "ttl"},
	} {
		d, err := tryOpen(t, strings.Replace(test.url, "://", "://user:"+testenv.Password()+"@", 1))
		if err == nil {
			closeLater(t, d)
			t.Errorf("%s: opened, want an error", test.url)
			continue
		}
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%s: got %q, want an error that says %q and does not contain the password", test.url, err, test.want)
		}
	}
}

func TestOpenOrder(t *testing.T) {
	s := testenv.Redis(t)
	for query, want := range map[string]driver.Order{
		"":                        driver.Unordered,
		"?fair=true&require=fair": driver.FIFOByClient,
		"?fair=true&order=client": driver.FIFOByClient,
		"?fair=true&order=fifo&require=fifo,fair": driver.FIFO,
	} {
		if got := openURL(t, "redisson://%s%s", s.Addr, query).Info().Order; got != want {
			t.Errorf("%q: order %v, want %v", query, got, want)
		}
	}
}

// TestOpenKeepsValuesQuiet: the value of a mistyped parameter may be a secret.
func TestOpenKeepsValuesQuiet(t *testing.T) {
	secret := testenv.Password()
	for _, before := range []string{"h?ttl=", "h?mode=", "h?fair=", "h?fair=true&order=", "h?write=", "h?pubsub=", "h?fence=", "h?fenced=", "h?evict=", "h?require=", "h?waitreplicas=", "h?waitlimit=",
		"h?tls=", "h?tls=true&tls_ca=", "h?tls=true&tls_key=x&tls_cert=", "h?mode=cluster&master=", "h/", "h?sentinel_user=", "h?unknown="} {
		d, err := tryOpen(t, "redisson://"+before+secret)
		if err == nil {
			closeLater(t, d)
			t.Errorf("%s…: opened, want an error", before)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s…: the error contains the value", before)
		}
	}
}

// TestOpenHintsAtTLS: a missing or superfluous tls=true is reported, by the
// behavior of the server.
func TestOpenHintsAtTLS(t *testing.T) {
	t.Parallel()
	plain, encrypted := testenv.Redis(t), testenv.RedisTLS(t, testenv.NewCertificates(t))
	for _, test := range []struct{ url, want string }{
		{plain.Addr + "?tls=true", "does the server speak TLS?"},
		{encrypted.Addr, "does the server require TLS?"},
	} {
		_, err := tryOpen(t, "redisson://"+test.url)
		if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: got %v, want ErrUnavailable with the question %q", test.url, err, test.want)
		}
	}
}

func TestOpenUser(t *testing.T) {
	plain, other := testenv.Password()+" pässword", testenv.Password()
	s := testenv.Redis(t, "--requirepass", plain)
	s.Do("ACL", "SETUSER", "locker", "on", ">"+other, "~*", "&*", "+@all")
	password := url.PathEscape(plain)
	for _, user := range []string{":" + password, "default:" + password, "locker:" + other} {
		d := openURL(t, "redisson://%s@%s", user, s.Addr)
		release(t, acquire(t, d, request("x")))
	}
	for _, user := range []string{"", ":" + testenv.Password() + "@", "locker:" + password + "@", "nobody:" + other + "@"} {
		_, err := tryOpen(t, fmt.Sprintf("redisson://%s%s", user, s.Addr))
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: got %v, want fs.ErrPermission", user, err)
		}
		if err != nil && strings.Contains(err.Error(), testenv.PasswordMark) {
			t.Errorf("%s: the error %q contains the password", user, err)
		}
	}
}

// TestPingOfARefusedClient changes the password of a client without its
// knowledge.
func TestPingOfARefusedClient(t *testing.T) {
	s, password := testenv.Redis(t), testenv.Password()
	s.Do("ACL", "SETUSER", "locker", "on", ">"+password, "~*", "&*", "+@all")
	c, err := dsync.Open(t.Context(), "redisson://locker:"+password+"@"+s.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	s.Do("ACL", "SETUSER", "locker", "resetpass", ">"+testenv.Password())
	s.Do("CLIENT", "KILL", "USER", "locker")
	testenv.Eventually(t, func() bool {
		err := c.Ping(t.Context())
		return errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), testenv.PasswordMark)
	}, "Ping fails")
	s.Do("ACL", "SETUSER", "locker", "resetpass", ">"+password)
	testenv.Eventually(t, func() bool { return c.Ping(t.Context()) == nil }, "Ping succeeds")
}

func TestOpenDatabase(t *testing.T) {
	s := testenv.Redis(t)
	d := openURL(t, "redisson://%s/3", s.Addr)
	l := acquire(t, d, request("x"))
	if got := s.Do("EXISTS", "x"); got != int64(0) {
		t.Error("the key is in database 0")
	}
	release(t, l)
	if _, err := tryOpen(t, fmt.Sprintf("redisson://%s/99", s.Addr)); err == nil {
		t.Error("a database that the server does not have: opened")
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	black, err := net.Listen("tcp", "127.0.0.1:0") // accepts and does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer black.Close()
	for _, parameters := range []string{"", "?mode=cluster", "?mode=sentinel&master=main", "?tls=true"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		_, _, err := driver.Open(ctx, "redisson://"+black.Addr().String()+parameters)
		if took := time.Since(start); took > redisdial.ConnectFor {
			t.Errorf("%s: returned after %v", parameters, took)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v, want context.DeadlineExceeded", parameters, err)
		}
		cancel()
	}
}

func TestOpenWithNoServer(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	s.Kill()
	for _, parameters := range []string{"", "?mode=cluster", "?mode=sentinel&master=main", "?tls=true"} {
		if _, err := tryOpen(t, "redisson://"+s.Addr+parameters); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", parameters, err)
		}
	}
}

func TestOpenInTheWrongMode(t *testing.T) {
	s := testenv.Redis(t)
	node := testenv.Redis(t, "--cluster-enabled", "yes")
	for _, test := range []struct{ url, want string }{
		{s.Addr + "?mode=cluster", "not in a cluster"},
		{s.Addr + "," + s.Addr + "?mode=cluster", "not in a cluster"},
		{s.Addr + "?mode=sentinel&master=main", "not a sentinel"},
		{node.Addr, "mode=cluster"},
	} {
		if _, err := tryOpen(t, "redisson://"+test.url); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error that says %q", test.url, err, test.want)
		}
	}
}

func TestOpenAtAReplica(t *testing.T) {
	s := testenv.Redis(t, "--replicaof", "127.0.0.1 1")
	if _, err := tryOpen(t, "redisson://"+s.Addr); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "replica") {
		t.Errorf("got %v, want ErrUnavailable that names the replica", err)
	}
}

func TestOpenWhereLocksCanBeEvicted(t *testing.T) {
	s := testenv.Redis(t, "--maxmemory-policy", "volatile-ttl")
	if _, err := tryOpen(t, "redisson://"+s.Addr); err == nil || !strings.Contains(err.Error(), "volatile-ttl") {
		t.Errorf("got %v, want an error that names the policy", err)
	}
	release(t, acquire(t, openURL(t, "redisson://%s?evict=allow", s.Addr), request("x")))

	client := userClient(t, rueidis.ClientOption{InitAddress: []string{s.Addr}})
	d, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, d)
	if _, err := d.Acquire(t.Context(), request("x")); err == nil || !strings.Contains(err.Error(), "volatile-ttl") {
		t.Errorf("first Acquire: got %v, want an error that names the policy", err)
	}
	s.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	release(t, acquire(t, d, request("x")))
}

func TestOpenWithLittlePermission(t *testing.T) {
	s := testenv.Redis(t, "--maxmemory-policy", "volatile-ttl") // which INFO would report
	password := testenv.Password()
	s.Do(append([]string{"ACL", "SETUSER", "locker", "on", ">" + password}, leastRights(t, "`Inspect`, `ForceUnlock`")...)...)
	url := fmt.Sprintf("redisson://locker:%s@%s", password, s.Addr)
	a, b := openURL(t, "%s", url), openURL(t, "%s", url)
	l := acquire(t, a, request("lk:x"))
	w := wait(t, b, request("lk:x"))
	if status, err := a.Inspect(t.Context(), "lk:x"); err != nil || !status.Held || status.Waiters != -1 {
		t.Errorf("Inspect: got %+v, %v, want the lock held and no number of waiters", status, err)
	}
	release(t, l)
	release(t, w.granted(t))
}

func TestUserClients(t *testing.T) {
	s := testenv.Redis(t)
	for name, o := range map[string]rueidis.ClientOption{
		"default":      {},
		"RESP2":        {AlwaysRESP2: true},
		"no pipelines": {DisableAutoPipelining: true},
		"one":          {PipelineMultiplex: -1, ForceSingleClient: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.InitAddress = []string{s.Addr}
			client := userClient(t, o)
			d, err := New(client, nil)
			if err != nil {
				t.Fatal(err)
			}
			closeLater(t, d)
			l := acquire(t, d, request("x"))
			w := wait(t, d, request("x"))
			subscribers(t, s, "x", 1)
			start := time.Now()
			release(t, l)
			next := w.granted(t)
			if took := time.Since(start); took > backstop/2 {
				t.Errorf("the waiter got the lock after %v", took)
			}
			if err := next.Renew(t.Context(), time.Minute); err != nil {
				t.Errorf("Renew: %v", err)
			}
			release(t, next)
			if err := d.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
			subscribers(t, s, "x", 0)
			if err := client.Do(t.Context(), client.B().Ping().Build()).Error(); err != nil {
				t.Errorf("the client after Close of the driver: %v", err)
			}
		})
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	s := testenv.Redis(t)
	client := userClient(t, rueidis.ClientOption{InitAddress: []string{s.Addr}})
	for _, o := range []Options{{PubSub: "loud"}, {Fence: "wooden"}, {WaitReplicas: -1}, {WaitLimit: -1}} {
		if _, err := New(client, &o); err == nil {
			t.Errorf("New with %+v: got no error", o)
		}
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("New without a client: got no error")
	}
}

func TestTLS(t *testing.T) {
	certs, strangers := testenv.NewCertificates(t), testenv.NewCertificates(t)
	s := testenv.RedisTLS(t, certs)
	client := fmt.Sprintf("&tls_cert=%s&tls_key=%s", url.QueryEscape(certs.ClientCertFile), url.QueryEscape(certs.ClientKeyFile))
	ca := "&tls_ca=" + url.QueryEscape(certs.CAFile)
	for _, parameters := range []string{
		ca + client,
		ca + client + "&tls_server_name=127.0.0.1",
		client + "&tls_insecure_skip_verify=true",
	} {
		d := openURL(t, "redisson://%s?tls=true%s", s.Addr, parameters)
		l := acquire(t, d, request("x"))
		w := wait(t, d, request("x"))
		release(t, l)
		release(t, w.granted(t))
	}
	for name, parameters := range map[string]string{
		"no client certificate": "?tls=true" + ca,
		"unknown authority":     "?tls=true" + client,
		"stranger":              "?tls=true" + ca + fmt.Sprintf("&tls_cert=%s&tls_key=%s", strangers.ClientCertFile, strangers.ClientKeyFile),
		"another host name":     "?tls=true&tls_server_name=example.org" + ca + client,
		"no TLS":                "",
	} {
		_, err := tryOpen(t, "redisson://"+s.Addr+parameters)
		if !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", name, err)
		}
	}
	var wrongName *tls.CertificateVerificationError
	_, err := tryOpen(t, "redisson://"+s.Addr+"?tls=true&tls_server_name=example.org"+ca+client)
	if !errors.As(err, &wrongName) {
		t.Errorf("another host name: got %v, want a tls.CertificateVerificationError", err)
	}
}
