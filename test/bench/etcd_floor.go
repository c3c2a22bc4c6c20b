package bench

import (
	"context"
	"errors"
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

// etcdQueue puts a key for each who wants a lock, and waits for the one before it to go, by one watch that was there first. A watch for
// each wait would begin at a revision that is over by then, and have to wait for the loop that serves such watches every 100 ms.
type etcdQueue struct {
	*etcdLease
	watched chan struct{} // closed when the watch has ended

	mu     sync.Mutex
	waits  map[string]chan struct{} // for a key to go
	gone   map[string]bool          // which nobody waited for yet
	recent []string                 // the same, the oldest first
}

const (
	etcdQueuePrefix = "queue/"
	goneKept        = 4096
)

func openEtcdQueue(ctx context.Context, addrs []string) (Locker, error) {
	lease, err := newEtcdLease(ctx, addrs)
	if err != nil {
		return nil, err
	}
	l := &etcdQueue{etcdLease: lease, watched: make(chan struct{}), waits: make(map[string]chan struct{}), gone: make(map[string]bool)}
	life, cancel := context.WithCancel(context.Background())
	stop := lease.cancel
	lease.cancel = func() {
		stop()
		cancel()
		<-l.watched
	}
	events := lease.client.Watch(life, etcdQueuePrefix, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	select {
	case <-events:
	case <-ctx.Done():
		close(l.watched)
		return nil, errors.Join(ctx.Err(), l.Close())
	}
	go func() { // ends with life
		defer close(l.watched)
		for e := range events {
			for _, one := range e.Events {
				l.went(string(one.Kv.Key))
			}
		}
	}()
	return l, nil
}

// went is called for each key that goes.
func (l *etcdQueue) went(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next := l.waits[key]; next != nil {
		delete(l.waits, key)
		close(next)
		return
	}
	l.gone[key] = true
	if l.recent = append(l.recent, key); len(l.recent) > goneKept {
		delete(l.gone, l.recent[0])
		l.recent = l.recent[1:]
	}
}

// await returns a channel that is closed when the key has gone.
func (l *etcdQueue) await(key string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := make(chan struct{})
	if l.gone[key] {
		close(next)
	} else {
		l.waits[key] = next
	}
	return next
}

func (l *etcdQueue) Lock(ctx context.Context, name string) (Held, error) {
	prefix := etcdQueuePrefix + name + "/"
	key := prefix + newID()
	answer, err := l.client.Txn(ctx).Then(
		clientv3.OpGet(prefix, append(clientv3.WithLastCreate(), clientv3.WithKeysOnly())...),
		clientv3.OpPut(key, "", clientv3.WithLease(l.id)),
	).Commit()
	if err != nil {
		return nil, err
	}
	if before := answer.Responses[0].GetResponseRange().Kvs; len(before) > 0 {
		select {
		case <-l.await(string(before[0].Key)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &etcdHeld{l.etcdLease, key}, nil
}
