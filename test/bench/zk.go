package bench

import (
	"context"
	"errors"
	"path"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/internal/testenv"
)

var zkBackend = &Backend{
	Name: "ZooKeeper",
	Start: func(tb testing.TB, storage testenv.Storage) *Servers {
		s := storage.ZooKeeper(tb, "-Xmx1g")
		return &Servers{Addrs: []string{s.Addr}, Pids: []int{s.Pid()}}
	},
	Warms: true,
	Rows: []*Row{
		{Name: "floor: create and delete", Kind: Floor, In: []int{1, 2, 6}, Open: openZK(zkSession.pair)},
		{Name: "floor: queue, 4 requests", Kind: Floor, In: []int{3, 4, 5, 7, 8}, Open: openZK(zkSession.queue)},
		{Name: "zk.NewLock", Kind: Peer, Open: openZK(zkSession.lock)},
		ours("dsync", "zk", ""),
		reads("zk", "", 1, 3),
	},
}

// zkSession is a client that locks with one of its methods.
type zkSession struct {
	conn *gozk.Conn
	how  func(s zkSession, ctx context.Context, name string) (Held, error)
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func openZK(how func(zkSession, context.Context, string) (Held, error)) func(context.Context, []string) (Locker, error) {
	return func(ctx context.Context, addrs []string) (Locker, error) {
		conn, events, err := gozk.Connect(addrs, heldTTL, gozk.WithLogger(quiet{}), gozk.WithLogInfo(false))
		if err != nil {
			return nil, err
		}
		for {
			select {
			case e := <-events:
				if e.State == gozk.StateHasSession {
					return zkSession{conn, how}, nil
				}
			case <-ctx.Done():
				conn.Close()
				return nil, ctx.Err()
			}
		}
	}
}

func (s zkSession) Lock(ctx context.Context, name string) (Held, error) { return s.how(s, ctx, name) }

func (s zkSession) Close() error {
	s.conn.Close()
	return nil
}

var openACL = gozk.WorldACL(gozk.PermAll)

func (s zkSession) deletion(node string) Held {
	return &hold{release: func(context.Context) error { return s.conn.Delete(node, -1) }}
}

// pair does not wait, because it is only used for free locks.
func (s zkSession) pair(_ context.Context, name string) (Held, error) {
	node, err := s.conn.Create("/"+name, nil, gozk.FlagEphemeral, openACL)
	return s.deletion(node), err
}

// number creates a numbered node, and its parent if that is missing.
func (s zkSession) number(node string) (string, error) {
	own, err := s.conn.Create(node, nil, gozk.FlagEphemeral|gozk.FlagSequence, openACL)
	if errors.Is(err, gozk.ErrNoNode) {
		if _, err = s.conn.Create(path.Dir(node), nil, 0, openACL); err == nil || errors.Is(err, gozk.ErrNodeExists) {
			own, err = s.conn.Create(node, nil, gozk.FlagEphemeral|gozk.FlagSequence, openACL)
		}
	}
	return own, err
}

// queue creates a numbered node and waits for the deletion of the node before
// it. No waiter leaves the queue here.
func (s zkSession) queue(ctx context.Context, name string) (Held, error) {
	parent := "/" + name
	own, err := s.number(parent + "/n-")
	if err != nil {
		return nil, err
	}
	for {
		children, _, err := s.conn.Children(parent)
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
			return s.deletion(own), nil
		}
		there, _, event, err := s.conn.ExistsW(parent + "/" + before)
		if err != nil {
			return nil, err
		}
		if there {
			select {
			case <-event:
				return s.deletion(own), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// lock acquires the client library's Lock.
func (s zkSession) lock(_ context.Context, name string) (Held, error) {
	lock := gozk.NewLock(s.conn, "/"+name, openACL)
	if err := lock.Lock(); err != nil {
		return nil, err
	}
	return &hold{release: func(context.Context) error { return lock.Unlock() }}, nil
}
