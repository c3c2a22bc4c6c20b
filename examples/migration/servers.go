package main

import (
	"context"

	"github.com/go-dsync/dsync/examples/servers"
)

// ownServers are a Redis server and an etcd server that run as long as the
// program.
type ownServers struct{ redis, etcd *servers.Server }

func startServers(ctx context.Context, dir string) (s *ownServers, err error) {
	s = &ownServers{}
	if s.redis, err = servers.Redis(ctx, dir); err != nil {
		return nil, err
	}
	if s.etcd, err = servers.Etcd(ctx, dir); err != nil {
		s.redis.Stop()
		return nil, err
	}
	return s, nil
}

func (s *ownServers) redisURL() string { return "redisson://" + s.redis.Addr }
func (s *ownServers) etcdURL() string  { return "etcd://" + s.etcd.Addr + "/locks/" }

func (s *ownServers) stop() {
	s.redis.Stop()
	s.etcd.Stop()
}
