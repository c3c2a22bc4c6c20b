package consullock_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/go-dsync/dsync/conformance"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/contrib/consullock"
	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) {
	driver.Register("consullock", openURL)
	conformance.RunWorker()
	m.Run()
}

// TestConformance runs the suite on a server. All its clients have the same
// address.
func TestConformance(t *testing.T) {
	s := testenv.Consul(t, `"limits": {"http_max_conns_per_client": -1}`)
	conformance.Run(t, conformance.Harness{Backend: func(testing.TB) *conformance.Backend {
		return &conformance.Backend{
			URL: fmt.Sprintf("consullock://%s/locks", s.Addr),
			New: func(tb testing.TB) (driver.Driver, *conformance.Link) {
				w := new(wire.Wire)
				tb.Cleanup(w.Close)
				through, err := w.Listen(s.Addr)
				if err != nil {
					tb.Fatal(err)
				}
				return consullock.New(connect(tb, through, ""), "locks/", true), conformance.LinkOver(w)
			},
			Expire: func(tb testing.TB, name string) {
				d := consullock.New(connect(tb, s.Addr, ""), "locks/", true)
				_ = d.ForceUnlock(tb.Context(), name) // ErrNotHeld: there is no lock
			},
			Ping:    s.Ping,
			Freeze:  func(testing.TB) { s.Freeze() },
			Thaw:    func(testing.TB) { s.Thaw() },
			Restart: func(testing.TB) { s.Restart() },
		}
	}})
}

func connect(tb testing.TB, addr, token string) *api.Client {
	tb.Helper()
	c, err := api.NewClient(&api.Config{Address: addr, Token: token, Transport: transport(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// transport returns a transport whose connections end with the test.
func transport(tb testing.TB) *http.Transport {
	t := &http.Transport{MaxIdleConnsPerHost: 10}
	tb.Cleanup(t.CloseIdleConnections)
	return t
}

// TestErrors checks the errors of clients with too few rights, and of a client
// whose server is gone.
func TestErrors(t *testing.T) {
	const admin = "00112233-4455-6677-8899-aabbccddeeff"
	s := testenv.Consul(t, fmt.Sprintf(`"acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": %q}}`, admin))
	acl := connect(t, s.Addr, admin).ACL()
	allow := func(name, rules string) (token string) {
		_, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil)
		if err != nil {
			t.Fatal(err)
		}
		made, _, err := acl.TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{Name: name}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made.SecretID
	}
	writer := allow("writer", `key_prefix "locks/" { policy = "write" }`)
	reader := allow("reader", `key_prefix "locks/" { policy = "read" }`)
	check := func(what, token string, want error) {
		t.Helper()
		d := consullock.New(connect(t, s.Addr, token), "locks/", true)
		defer d.Close(drivertest.Guard(t))
		_, err := d.Acquire(t.Context(), drivertest.NoWait("n"))
		if !errors.Is(err, want) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s: Acquire: got %v, want %v", what, err, want)
		}
		if _, err := d.Inspect(t.Context(), "n"); token != reader && !errors.Is(err, want) {
			t.Errorf("%s: Inspect: got %v, want %v", what, err, want)
		}
		if err != nil && strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error contains the token", what)
		}
	}
	check("no such token", "11112222-3333-4444-5555-666677778888", driver.ErrCredentials)
	check("without rights", allow("other", `key_prefix "other/" { policy = "write" }`), fs.ErrPermission)
	check("read only", reader, fs.ErrPermission)
	check("with all rights", writer, nil)
	s.Kill()
	check("no server", writer, driver.ErrUnavailable)
}

// openURL opens consullock://host:8500/prefix, whose password is the token, for
// the checks with several processes.
func openURL(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	prefix := strings.TrimPrefix(u.Path, "/")
	password := u.Password()
	if err := u.Err(); err != nil {
		return nil, err
	}
	if len(u.Hosts) != 1 || prefix == "" {
		return nil, errors.New("consullock URL: want consullock://host:8500/prefix")
	}
	config := api.Config{Address: u.HostsWithPort("127.0.0.1", "8500")[0]}
	if password != nil {
		token, err := password()
		if err != nil {
			return nil, err
		}
		config.Token = token
	}
	client, err := api.NewClient(&config)
	if err != nil {
		return nil, err
	}
	if _, err := client.Status().LeaderWithQueryOptions(new(api.QueryOptions).WithContext(ctx)); err != nil {
		return nil, fmt.Errorf("cannot reach Consul at %s: %w", config.Address, err)
	}
	return consullock.New(client, prefix+"/", c.Fenced), nil
}
