package bench

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

var etcdBackend = &Backend{
	Name:  "etcd",
	Start: startEtcd,
	Rows: append(readRows("etcd", "", &Row{Name: "floor: transaction and delete for a reader", Kind: Floor, In: []int{8, 9}, Open: openEtcdShared}), []*Row{
		{Name: "floor: transaction and delete", Kind: Floor, In: []int{1, 2, 6}, Open: openEtcdPair},
		{Name: "floor: queue and one watch", Kind: Floor, In: []int{3, 4, 5, 7, 14}, Open: openEtcdQueue},
		{Name: "concurrency.Mutex", Kind: Peer, Open: openMutex},
		{Name: "concurrency.Mutex, a session for each lock", Kind: Peer, In: []int{1, 2, 3, 4, 6}, Open: openMutexSession},
		ours("dsync", "etcd", "", dsync.Options{}),
		ours("dsync, no tokens", "etcd", "/?fenced=false", dsync.Options{}, 3, 5, 7),
		ours("dsync, in order", "etcd", "/?order=fifo", dsync.Options{}, 3, 4, 5, 14),
	}...),
}

func startEtcd(tb testing.TB, storage testenv.Storage) *Servers {
	s := storage.Etcd(tb)
	return &Servers{
		Addrs: []string{s.Addr},
		Pids:  []int{s.Pid()},
		Counter: func(tb testing.TB) counter {
			return counter{func() int64 { return etcdMessages(tb, s.Addr) }, func() {}}
		},
		Left: func(tb testing.TB) Sample {
			return Sample{"left at server": etcdMetric(tb, s.Addr, "etcd_debugging_mvcc_keys_total ", ""), "server B": etcdMetric(tb, s.Addr, "etcd_mvcc_db_total_size_in_use_in_bytes ", "")}
		},
	}
}

// etcdMessages returns how many messages the server has received: a request is one, and so is a keep-alive on its stream. The server counts the end
// of a stream as a message, too.
func etcdMessages(tb testing.TB, addr string) int64 {
	ended := etcdMetric(tb, addr, "grpc_server_handled_total{", `grpc_type="bidi_stream"`)
	return int64(etcdMetric(tb, addr, "grpc_server_msg_received_total{", "") - ended)
}

// etcdMetric returns the sum of what the server tells on lines that begin in a way, and contain a part.
func etcdMetric(tb testing.TB, addr, begin, part string) float64 {
	tb.Helper()
	response, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		tb.Fatal(err)
	}
	defer response.Body.Close()
	n := 0.0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if text := lines.Text(); strings.HasPrefix(text, begin) && strings.Contains(text, part) {
			v, err := strconv.ParseFloat(text[strings.LastIndex(text, " ")+1:], 64)
			if err != nil {
				tb.Fatal(err)
			}
			n += v
		}
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return n
}

func newEtcd(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

// mutexes has a session for all names. Mutexes of one session and name do not exclude each other, so those who want the same name have
// further sessions.
type mutexes struct {
	client *clientv3.Client

	mu       sync.Mutex
	sessions []*concurrency.Session
	taken    map[string][]bool // by the index of the session
}

func openMutex(_ context.Context, addrs []string) (Locker, error) {
	client, err := newEtcd(addrs)
	if err != nil {
		return nil, err
	}
	return &mutexes{client: client, taken: make(map[string][]bool)}, nil
}

func newSession(client *clientv3.Client) (*concurrency.Session, error) {
	return concurrency.NewSession(client, concurrency.WithTTL(int(heldTTL.Seconds())))
}

// take returns a session that nobody uses for the name.
func (l *mutexes) take(name string) (int, *concurrency.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.taken[name]
	i := 0
	for i < len(all) && all[i] {
		i++
	}
	if i == len(l.sessions) {
		l.mu.Unlock()
		s, err := newSession(l.client)
		l.mu.Lock()
		if err != nil {
			return 0, nil, err
		}
		l.sessions = append(l.sessions, s)
		for i, all = 0, l.taken[name]; i < len(all) && all[i]; i++ { // others were here meanwhile
		}
	}
	if i == len(all) {
		all = append(all, false)
	}
	all[i] = true
	l.taken[name] = all
	return i, l.sessions[i], nil
}

func (l *mutexes) put(name string, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[name][i] = false
}

func (l *mutexes) Lock(ctx context.Context, name string) (Held, error) {
	i, s, err := l.take(name)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, name)
	if err := m.Lock(ctx); err != nil {
		l.put(name, i)
		return nil, err
	}
	return &mutexHeld{l, m, name, i}, nil
}

func (l *mutexes) Close() error {
	for _, s := range l.sessions {
		_ = s.Close() // its lease ends by itself
	}
	return l.client.Close()
}

type mutexHeld struct {
	l     *mutexes
	m     *concurrency.Mutex
	name  string
	index int
}

func (h *mutexHeld) Release(ctx context.Context) error {
	err := h.m.Unlock(ctx)
	h.l.put(h.name, h.index)
	return err
}

func (h *mutexHeld) Err() error {
	select {
	case <-h.l.session(h.index).Done():
		return errLost
	default:
		return nil
	}
}

func (l *mutexes) session(i int) *concurrency.Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions[i]
}

// mutexSessions makes a session for each lock, as the example of the package does.
type mutexSessions struct{ client *clientv3.Client }

func openMutexSession(_ context.Context, addrs []string) (Locker, error) {
	client, err := newEtcd(addrs)
	if err != nil {
		return nil, err
	}
	return mutexSessions{client}, nil
}

func (l mutexSessions) Lock(ctx context.Context, name string) (Held, error) {
	s, err := newSession(l.client)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, name)
	if err := m.Lock(ctx); err != nil {
		_ = s.Close() // the error of the lock says more
		return nil, err
	}
	return &mutexSessionHeld{s, m}, nil
}

func (l mutexSessions) Close() error { return l.client.Close() }

type mutexSessionHeld struct {
	s *concurrency.Session
	m *concurrency.Mutex
}

func (h *mutexSessionHeld) Release(ctx context.Context) error {
	if err := h.m.Unlock(ctx); err != nil {
		return err
	}
	return h.s.Close()
}

func (h *mutexSessionHeld) Err() error {
	select {
	case <-h.s.Done():
		return errLost
	default:
		return nil
	}
}
