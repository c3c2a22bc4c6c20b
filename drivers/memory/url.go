package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-dsync/dsync/driver"
)

func init() { driver.Register("memory", open) }

// The named backends, and the number of open drivers of each.
var (
	sharedMu sync.Mutex
	shared   = map[string]*sharedServer{}
)

type sharedServer struct {
	*Server
	users int
}

func open(_ context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	o := Options{NoTokens: !c.Fenced, KeepsAlive: u.Bool("keepalive", false)}
	switch u.Choice("order", "fifo", "clients", "unordered") {
	case "clients":
		o.Order = FIFOByClient
	case "unordered":
		o.Order = Unordered
	}
	if err := u.Err(); err != nil {
		return nil, err
	}
	if u.User != nil || u.Path != "" || len(u.Hosts) > 1 {
		return nil, errors.New("memory URL: want memory:// or memory://name, without user, path or a second name")
	}
	if len(u.Hosts) == 0 {
		return New(&o), nil
	}
	return openShared(u.Hosts[0], o)
}

func openShared(name string, o Options) (*Driver, error) {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	s := shared[name]
	if s == nil {
		s = &sharedServer{Server: NewServer(&o)}
		shared[name] = s
	}
	if s.options != o {
		return nil, fmt.Errorf("memory URL: backend %s is open with other parameters", name)
	}
	s.users++
	d := s.NewDriver()
	d.onClose = func() { closeShared(name, s) }
	return d, nil
}

func closeShared(name string, s *sharedServer) {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if s.users--; s.users == 0 {
		delete(shared, name)
	}
}
