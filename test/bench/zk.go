package bench

import (
	"context"
	"errors"
	"path"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

var zkBackend = &Backend{
	Name:  "ZooKeeper",
	Start: startZooKeeper,
	Warms: true,
	Rows: append(readRows("zk", "", &Row{Name: "floor: create, list and delete for a reader", Kind: Floor, In: []int{9}, Open: openZKShared}), []*Row{
		{Name: "floor: create and delete", Kind: Floor, In: []int{1, 2, 6, 8}, Open: openZKPair},
		{Name: "floor: queue, 4 requests", Kind: Floor, In: []int{3, 4, 5, 7, 14}, Open: openZKQueue},
		{Name: "zk.NewLock", Kind: Peer, Open: openZKLock},
		ours("dsync", "zk", "", dsync.Options{}),
	}...),
}

func startZooKeeper(tb testing.TB, storage testenv.Storage) *Servers {
	s := storage.ZooKeeper(tb, "-Xmx1g") // for 100,000 nodes
	return &Servers{
		Addrs:   []string{s.Addr},
		Pids:    []int{s.Pid()},
		Counter: func(testing.TB) counter { return counter{s.Requests, func() {}} },
		Left: func(testing.TB) Sample {
			return Sample{"left at server": float64(s.Nodes()), "server B": float64(s.Bytes())}
		},
	}
}

// zkSession is a client.
type zkSession struct{ conn *gozk.Conn }

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func newZKSession(ctx context.Context, addrs []string) (zkSession, error) {
	conn, events, err := gozk.Connect(addrs, heldTTL, gozk.WithLogger(quiet{}), gozk.WithLogInfo(false))
	if err != nil {
		return zkSession{}, err
	}
	for {
		select {
		case e := <-events:
			if e.State == gozk.StateHasSession {
				return zkSession{conn}, nil
			}
		case <-ctx.Done():
			conn.Close()
			return zkSession{}, ctx.Err()
		}
	}
}

func (s zkSession) Close() error {
	s.conn.Close()
	return nil
}

var openACL = gozk.WorldACL(gozk.PermAll)

// number makes a node that is numbered, and the one above it if that is not there.
func (s zkSession) number(node string) (string, error) {
	own, err := s.conn.Create(node, nil, gozk.FlagEphemeral|gozk.FlagSequence, openACL)
	if errors.Is(err, gozk.ErrNoNode) {
		if _, err = s.conn.Create(path.Dir(node), nil, 0, openACL); err == nil || errors.Is(err, gozk.ErrNodeExists) {
			own, err = s.conn.Create(node, nil, gozk.FlagEphemeral|gozk.FlagSequence, openACL)
		}
	}
	return own, err
}

// zkPair waits for nobody: it is for locks that are free.
type zkPair struct{ zkSession }

func openZKPair(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newZKSession(ctx, addrs)
	if err != nil {
		return nil, err
	}
	return zkPair{s}, nil
}

func (l zkPair) Lock(_ context.Context, name string) (Held, error) {
	path, err := l.conn.Create("/"+name, nil, gozk.FlagEphemeral, openACL)
	if err != nil {
		return nil, err
	}
	return &zkHeld{l.zkSession, path}, nil
}

type zkHeld struct {
	s    zkSession
	path string
}

func (h *zkHeld) Release(context.Context) error { return h.s.conn.Delete(h.path, -1) }

// zkQueue makes a node that is numbered, and waits for the one before it to go.
type zkQueue struct{ zkSession }

func openZKQueue(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newZKSession(ctx, addrs)
	if err != nil {
		return nil, err
	}
	return zkQueue{s}, nil
}

func (l zkQueue) Lock(ctx context.Context, name string) (Held, error) {
	parent := "/" + name
	own, err := l.number(parent + "/n-")
	if err != nil {
		return nil, err
	}
	for {
		children, _, err := l.conn.Children(parent)
		if err != nil {
			return nil, err
		}
		before := ""
		for _, c := range children {
			if c < path.Base(own) && c > before {
				before = c
			}
		}
		if before == "" {
			return &zkHeld{l.zkSession, own}, nil
		}
		there, _, event, err := l.conn.ExistsW(parent + "/" + before)
		if err != nil {
			return nil, err
		}
		if there {
			select {
			case <-event:
				return &zkHeld{l.zkSession, own}, nil // nobody leaves the queue here
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// zkLocks is the lock that comes with the client.
type zkLocks struct{ zkSession }

func openZKLock(ctx context.Context, addrs []string) (Locker, error) {
	s, err := newZKSession(ctx, addrs)
	if err != nil {
		return nil, err
	}
	return zkLocks{s}, nil
}

func (l zkLocks) Lock(_ context.Context, name string) (Held, error) {
	lock := gozk.NewLock(l.conn, "/"+name, openACL)
	if err := lock.Lock(); err != nil {
		return nil, err
	}
	return zkLockHeld{lock}, nil
}

type zkLockHeld struct{ lock *gozk.Lock }

func (h zkLockHeld) Release(context.Context) error { return h.lock.Unlock() }
