package bench

import (
	"context"
	"errors"
	"path"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The least that it takes to read a name, for each who reads. Nobody waits: they are for names that nobody writes.

// A hash with a mode and a field for each reader, whose time is in a key of its own, as in Redisson's read-write lock.
const (
	sharedAcquire = `if redis.call('HGET', KEYS[1], 'mode') == 'write' then return 0 end
redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`
	sharedRelease = `if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[2])
if redis.call('HLEN', KEYS[1]) == 1 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[3], '0')
end
return 1`
)

type redisShared struct{ *redisScripts }

func openRedisShared(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newRedisScripts(ctx, addrs[0], sharedAcquire, sharedRelease)
	if err != nil {
		return nil, err
	}
	return redisShared{s}, nil
}

func (l redisShared) Lock(ctx context.Context, name string) (Held, error) {
	h := &redisSharedHeld{l, name, newID()}
	n, err := l.client.Do(ctx, l.client.B().Evalsha().Sha1(l.sha[0]).Numkeys(2).Key(name, name+":"+h.id).Arg(h.id, l.ttl).Build()).ToInt64()
	if err := released(n, err); err != nil {
		return nil, err
	}
	return h, nil
}

type redisSharedHeld struct {
	l        redisShared
	name, id string
}

func (h *redisSharedHeld) Release(ctx context.Context) error {
	b := h.l.client.B()
	n, err := h.l.client.Do(ctx, b.Evalsha().Sha1(h.l.sha[1]).Numkeys(3).Key(h.name, h.name+":"+h.id, "shared").Arg(h.id).Build()).ToInt64()
	return released(n, err)
}

// etcdShared puts a key for each who reads, on the condition that nobody writes.
type etcdShared struct{ *etcdLease }

func openEtcdShared(ctx context.Context, addrs []string) (Locker, error) {
	l, err := newEtcdLease(ctx, addrs)
	if err != nil {
		return nil, err
	}
	return etcdShared{l}, nil
}

func (l etcdShared) Lock(ctx context.Context, name string) (Held, error) {
	key := name + "/read/" + newID()
	answer, err := l.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(name+"/write/"), "=", 0).WithPrefix()).
		Then(clientv3.OpPut(key, "", clientv3.WithLease(l.id))).
		Commit()
	if err != nil {
		return nil, err
	}
	if !answer.Succeeded {
		return nil, errors.New("somebody writes")
	}
	return &etcdHeld{l.etcdLease, key}, nil
}

// zkShared makes a node for each who reads, which is numbered, and looks whether one who writes is before it.
type zkShared struct{ zkSession }

func openZKShared(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newZKSession(ctx, addrs)
	if err != nil {
		return nil, err
	}
	return zkShared{s}, nil
}

func (l zkShared) Lock(_ context.Context, name string) (Held, error) {
	parent := "/" + name
	own, err := l.number(parent + "/read-")
	if err != nil {
		return nil, err
	}
	children, _, err := l.conn.Children(parent)
	if err != nil {
		return nil, err
	}
	for _, c := range children {
		number, writes := strings.CutPrefix(c, "write-")
		if writes && number < strings.TrimPrefix(path.Base(own), "read-") {
			return nil, errors.New("somebody writes")
		}
	}
	return &zkHeld{l.zkSession, own}, nil
}
