package bench

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync/internal/testenv"
)

var etcdBackend = &Backend{
	Name: "etcd",
	Start: func(tb testing.TB, storage testenv.Storage) *Servers {
		s := storage.Etcd(tb)
		return &Servers{Addrs: []string{s.Addr}, Pids: []int{s.Pid()}}
	},
	Rows: []*Row{
		{Name: "floor: transaction and delete", Kind: Floor, In: []int{1, 2, 6}, Open: openEtcdPair},
		{Name: "floor: queue and one watch", Kind: Floor, In: []int{3, 4, 5, 7, 8}, Open: openEtcdQueue},
		{Name: "concurrency.Mutex", Kind: Peer, Open: openMutex},
		{Name: "concurrency.Mutex, a session for each lock", Kind: Peer, In: []int{1, 2, 3, 4}, Open: openMutexSession},
		ours("dsync", "etcd", ""),
		ours("dsync, no tokens", "etcd", "/?fenced=false", 3, 5, 7),
		ours("dsync, order=fifo", "etcd", "/?order=fifo", 3, 4, 5, 8),
		reads("etcd", "", 1, 3),
	},
}

func newEtcd(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

func newSession(client *clientv3.Client) (*concurrency.Session, error) {
	return concurrency.NewSession(client, concurrency.WithTTL(int(heldTTL.Seconds())))
}

// etcdPair does not wait, because it is only used for free locks.
type etcdPair struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func newEtcdPair(addrs []string) (etcdPair, error) {
	client, err := newEtcd(addrs)
	if err != nil {
		return etcdPair{}, err
	}
	session, err := newSession(client)
	if err != nil {
		return etcdPair{}, errors.Join(err, client.Close())
	}
	return etcdPair{client, session}, nil
}

func openEtcdPair(_ context.Context, addrs []string) (Locker, error) {
	l, err := newEtcdPair(addrs)
	return l, err
}

func (l etcdPair) Lock(ctx context.Context, name string) (Held, error) {
	answer, err := l.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(name), "=", 0)).
		Then(clientv3.OpPut(name, "", clientv3.WithLease(l.session.Lease()))).
		Commit()
	if err == nil && !answer.Succeeded {
		err = errors.New("the lock is not free")
	}
	return l.deletion(name), err
}

func (l etcdPair) deletion(key string) Held {
	return &hold{release: func(ctx context.Context) error {
		answer, err := l.client.Delete(ctx, key)
		if err != nil {
			return err
		}
		return released(answer.Deleted, nil)
	}}
}

func (l etcdPair) Close() error { return errors.Join(l.session.Close(), l.client.Close()) }

// etcdQueue puts a key for each waiter. A single watch, opened before the first
// key is put, reports all keys in order and all deletions. A new watch for each
// wait would begin at a revision in the past, and would have to wait
// for the server's loop that serves such watches every 100 ms.
type etcdQueue struct {
	etcdPair
	cancel  context.CancelFunc
	watched chan struct{} // closed when the watch has ended

	mu     sync.Mutex
	lines  map[string][]string        // the keys of each name
	grants map[string]chan<- struct{} // by the keys of this client
}

const etcdQueuePrefix = "queue/"

func openEtcdQueue(ctx context.Context, addrs []string) (Locker, error) {
	pair, err := newEtcdPair(addrs)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.Background())
	l := &etcdQueue{etcdPair: pair, cancel: cancel, watched: make(chan struct{}), lines: make(map[string][]string), grants: make(map[string]chan<- struct{})}
	there, err := pair.client.Get(ctx, etcdQueuePrefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		close(l.watched)
		return nil, errors.Join(err, l.Close())
	}
	for _, kv := range there.Kvs { // the waiters of other clients
		key := string(kv.Key)
		l.lines[path.Dir(key)] = append(l.lines[path.Dir(key)], key)
	}
	events := pair.client.Watch(life, etcdQueuePrefix, clientv3.WithPrefix(), clientv3.WithRev(there.Header.Revision+1))
	go func() { // ends when life ends
		defer close(l.watched)
		for e := range events {
			l.see(e.Events)
		}
	}()
	return l, nil
}

func (l *etcdQueue) Close() error {
	l.cancel()
	<-l.watched
	return l.etcdPair.Close()
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
	if _, err := l.client.Put(ctx, key, "", clientv3.WithLease(l.session.Lease())); err != nil {
		return nil, err
	}
	select {
	case <-grant:
		return l.deletion(key), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// mutexes has one session for all names. Mutexes of one session and name do
// not exclude each other, so concurrent callers of a name use additional
// sessions.
type mutexes struct {
	client *clientv3.Client

	mu       sync.Mutex
	sessions []*concurrency.Session
	taken    map[string][]bool // by the index of the session
}

func openMutex(_ context.Context, addrs []string) (Locker, error) {
	client, err := newEtcd(addrs)
	return &mutexes{client: client, taken: make(map[string][]bool)}, err
}

// take returns a session that no caller uses for the name, and its index. take
// creates a session under the mutex, once for each concurrent caller.
func (l *mutexes) take(name string) (*concurrency.Session, int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.taken[name], false)
	if i < 0 {
		i = len(l.taken[name])
		l.taken[name] = append(l.taken[name], false)
	}
	if i == len(l.sessions) {
		s, err := newSession(l.client)
		if err != nil {
			return nil, 0, err
		}
		l.sessions = append(l.sessions, s)
	}
	l.taken[name][i] = true
	return l.sessions[i], i, nil
}

func (l *mutexes) put(name string, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[name][i] = false
}

func (l *mutexes) Lock(ctx context.Context, name string) (Held, error) {
	s, i, err := l.take(name)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, name)
	if err := m.Lock(ctx); err != nil {
		l.put(name, i)
		return nil, err
	}
	return &hold{err: ended(s), release: func(ctx context.Context) error {
		defer l.put(name, i)
		return m.Unlock(ctx)
	}}, nil
}

// ended returns a function that returns an error once the session has ended.
func ended(s *concurrency.Session) func() error {
	return func() error {
		select {
		case <-s.Done():
			return errLost
		default:
			return nil
		}
	}
}

func (l *mutexes) Close() error {
	for _, s := range l.sessions {
		_ = s.Close() // otherwise its lease expires
	}
	return l.client.Close()
}

// mutexSessions creates a session for each lock, like the package's example.
type mutexSessions struct{ *clientv3.Client }

func openMutexSession(_ context.Context, addrs []string) (Locker, error) {
	client, err := newEtcd(addrs)
	return mutexSessions{client}, err
}

func (l mutexSessions) Lock(ctx context.Context, name string) (Held, error) {
	s, err := newSession(l.Client)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, name)
	if err := m.Lock(ctx); err != nil {
		_ = s.Close() // the error from the lock is more informative
		return nil, err
	}
	return &hold{release: func(ctx context.Context) error { return errors.Join(m.Unlock(ctx), s.Close()) }}, nil
}

func (l mutexSessions) Close() error { return l.Client.Close() }
