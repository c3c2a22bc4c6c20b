package bench

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcdLease is a client with one lease for all that it puts.
type etcdLease struct {
	client *clientv3.Client
	id     clientv3.LeaseID
	cancel context.CancelFunc
	ended  chan struct{} // closed when the last keep-alive is read
}

func newEtcdLease(ctx context.Context, addrs []string) (*etcdLease, error) {
	client, err := newEtcd(addrs)
	if err != nil {
		return nil, err
	}
	granted, err := client.Grant(ctx, int64(heldTTL.Seconds()))
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	life, cancel := context.WithCancel(context.Background())
	alive, err := client.KeepAlive(life, granted.ID)
	if err != nil {
		cancel()
		return nil, errors.Join(err, client.Close())
	}
	l := &etcdLease{client: client, id: granted.ID, cancel: cancel, ended: make(chan struct{})}
	go func() { // ends with life
		defer close(l.ended)
		for range alive {
		}
	}()
	return l, nil
}

func (l *etcdLease) Close() error {
	l.cancel()
	<-l.ended
	return l.client.Close()
}

// etcdPair waits for nobody: it is for locks that are free.
type etcdPair struct{ *etcdLease }

func openEtcdPair(ctx context.Context, addrs []string) (Locker, error) {
	l, err := newEtcdLease(ctx, addrs)
	if err != nil {
		return nil, err
	}
	return etcdPair{l}, nil
}

func (l etcdPair) Lock(ctx context.Context, name string) (Held, error) {
	answer, err := l.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(name), "=", 0)).
		Then(clientv3.OpPut(name, "", clientv3.WithLease(l.id))).
		Commit()
	if err != nil {
		return nil, err
	}
	if !answer.Succeeded {
		return nil, errors.New("the lock is not free")
	}
	return &etcdHeld{l.etcdLease, name}, nil
}

type etcdHeld struct {
	l   *etcdLease
	key string
}

func (h *etcdHeld) Release(ctx context.Context) error {
	answer, err := h.l.client.Delete(ctx, h.key)
	if err != nil {
		return err
	}
	return released(answer.Deleted, nil)
}

// etcdQueue puts a key for each who wants a lock. One watch, which was there first, tells of all keys in the order in which they came,
// and of those that go. A watch for each wait would begin at a revision that is over by then, and have to wait for the loop that serves
// such watches every 100 ms.
type etcdQueue struct {
	*etcdLease
	watched chan struct{} // closed when the watch has ended

	mu     sync.Mutex
	lines  map[string][]string        // the keys of each name
	grants map[string]chan<- struct{} // for the keys of this client
}

const etcdQueuePrefix = "queue/"

func openEtcdQueue(ctx context.Context, addrs []string) (Locker, error) {
	lease, err := newEtcdLease(ctx, addrs)
	if err != nil {
		return nil, err
	}
	l := &etcdQueue{etcdLease: lease, watched: make(chan struct{}), lines: make(map[string][]string), grants: make(map[string]chan<- struct{})}
	life, cancel := context.WithCancel(context.Background())
	stop := lease.cancel
	lease.cancel = func() {
		stop()
		cancel()
		<-l.watched
	}
	there, err := lease.client.Get(ctx, etcdQueuePrefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		close(l.watched)
		return nil, errors.Join(err, l.Close())
	}
	for _, kv := range there.Kvs { // who waits already
		key := string(kv.Key)
		l.lines[path.Dir(key)] = append(l.lines[path.Dir(key)], key)
	}
	events := lease.client.Watch(life, etcdQueuePrefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithRev(there.Header.Revision+1))
	select {
	case <-events:
	case <-ctx.Done():
		close(l.watched)
		return nil, errors.Join(ctx.Err(), l.Close())
	}
	go func() { // ends with life
		defer close(l.watched)
		for e := range events {
			l.see(e.Events)
		}
	}()
	return l, nil
}

func (l *etcdQueue) see(events []*clientv3.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		key := string(e.Kv.Key)
		name := path.Dir(key)
		line := l.lines[name]
		if e.Type == clientv3.EventTypePut {
			line = append(line, key)
		} else if i := slices.Index(line, key); i == 0 {
			line = line[1:]
		} else if i > 0 {
			line = slices.Delete(line, i, i+1)
		}
		if l.lines[name] = line; len(line) == 0 {
			delete(l.lines, name)
		} else if grant := l.grants[line[0]]; grant != nil {
			delete(l.grants, line[0])
			close(grant)
		}
	}
}

func (l *etcdQueue) Lock(ctx context.Context, name string) (Held, error) {
	key := etcdQueuePrefix + name + "/" + newID()
	grant := make(chan struct{})
	l.mu.Lock()
	l.grants[key] = grant
	l.mu.Unlock()
	if _, err := l.client.Put(ctx, key, "", clientv3.WithLease(l.id)); err != nil {
		return nil, err
	}
	select {
	case <-grant:
		return &etcdHeld{l.etcdLease, key}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
