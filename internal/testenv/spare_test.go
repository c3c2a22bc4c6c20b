package testenv

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
)

// TestSpareServers lets tests leave something on a server, or disturb it. The
// next test gets a server without data, and the same server if it can be
// cleaned.
func TestSpareServers(t *testing.T) {
	guarded := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), hangGuard)
		t.Cleanup(cancel)
		return ctx
	}
	create := func(t *testing.T, s *ZooKeeperServer, path string, flags byte) {
		c, err := dialJute(guarded(t), s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		text := func(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }
		body := append(text(path), text("")...)
		body = append(body, 0, 0, 0, 1, 0, 0, 0, 31) // all rights
		body = append(append(body, text("world")...), text("anyone")...)
		if _, err := c.request(1, append(body, 0, 0, 0, flags)); err != nil {
			t.Fatal(err)
		}
		if flags == 0 {
			if _, err := c.request(-11, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	call := func(t *testing.T, s *EtcdServer, method, body string, answer any) {
		if err := s.call(guarded(t), method, body, answer); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		leave func(t *testing.T) *Server
		same  bool
	}{
		{"node", func(t *testing.T) *Server {
			s := ZooKeeper(t)
			create(t, s, "/a", 0)
			create(t, s, "/a/b", 0)
			return &s.Server
		}, true},
		{"session", func(t *testing.T) *Server {
			s := ZooKeeper(t)
			create(t, s, "/a", 1)
			return &s.Server
		}, false},
		{"frozen", func(t *testing.T) *Server {
			s := ZooKeeper(t)
			s.Freeze()
			return &s.Server
		}, false},
		{"key", func(t *testing.T) *Server {
			s := Etcd(t)
			call(t, s, "lease/grant", `{"TTL":100,"ID":1}`, nil)
			call(t, s, "kv/put", `{"key":"YQ==","lease":1}`, nil)
			call(t, s, "kv/put", `{"key":"AA==","lease":0}`, nil)
			return &s.Server
		}, true},
		{"user", func(t *testing.T) *Server {
			s := Etcd(t)
			call(t, s, "auth/user/add", `{"name":"root","password":"`+Password()+`"}`, nil)
			return &s.Server
		}, false},
		{"killed", func(t *testing.T) *Server {
			s := Etcd(t)
			s.Kill()
			return &s.Server
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			spares.use(func() int {
				var used, next int
				ofEtcd := c.name == "key" || c.name == "user" || c.name == "killed"
				t.Run("leave", func(t *testing.T) { used = c.leave(t).Pid() })
				t.Run("next", func(t *testing.T) {
					if ofEtcd {
						s := Etcd(t)
						next = s.Pid()
						var left struct{ Kvs, Leases, Users []any }
						call(t, s, "kv/range", `{"key":"AA==","range_end":"AA=="}`, &left)
						call(t, s, "lease/leases", `{}`, &left)
						call(t, s, "auth/user/list", `{}`, &left)
						if len(left.Kvs)+len(left.Leases)+len(left.Users) > 0 {
							t.Errorf("left: %v", left)
						}
						return
					}
					s := ZooKeeper(t)
					next = s.Pid()
					create(t, s, "/a", 0) // it is not there
				})
				if same := used == next; same != c.same {
					t.Errorf("the next test has the same server: %v, want %v", same, c.same)
				}
				return 0
			})
		})
	}
}

// stopped is a server that is always clean.
type stopped struct{ Server }

func (s *stopped) clean(context.Context) error { return nil }

// TestTooManySpareServers checks that the server that was not used for longest
// is ended.
func TestTooManySpareServers(t *testing.T) {
	var ended []int
	var all spareServers
	all.use(func() int {
		for i := range maxSpares + 2 {
			home := &home{TB: t}
			home.Cleanup(func() { ended = append(ended, i) })
			all.giveBack(&loan{server: &stopped{Server{proc: &process{done: make(chan struct{})}}}, home: home})
		}
		if !slices.Equal(ended, []int{0, 1}) {
			t.Errorf("the servers %v were ended, want 0 and 1", ended)
		}
		return 0
	})
	if len(ended) != maxSpares+2 {
		t.Errorf("in the end, the servers %v were ended, want all", ended)
	}
}
