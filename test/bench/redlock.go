package bench

import (
	"context"
	"sync"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

var redlockBackend = &Backend{
	Name:  "Redlock",
	Start: func(tb testing.TB, storage testenv.Storage) *Servers { return startRedis(tb, storage, 5) },
	Rows: []*Row{
		{Name: "floor: SET NX and DEL on 5 nodes", Kind: Floor, Open: openQuorum},
		{Name: "redsync (go-redis)", Kind: Peer, In: []int{1, 2, 3, 4, 5, 6, 7}, Open: openRedsyncGoRedis},
		{Name: "redsync (rueidis)", Kind: Peer, Open: openRedsyncRueidis},
		ours("dsync", "redlock", "?durable=true"),
	},
}

// quorum is a majority of nodes that get each request at the same time. Callers
// that request the same name queue in the process, because callers that split
// the votes make no progress. When they compete with other processes, they try
// again after a millisecond.
type quorum struct {
	nodes []*redisScripts
	gates sync.Map // a chan struct{} by name: full while a caller has its turn
}

func openQuorum(ctx context.Context, addrs []string) (Locker, error) {
	q := &quorum{}
	for _, addr := range addrs {
		node, err := newRedisScripts(ctx, addr, valueRelease)
		if err != nil {
			_ = q.Close() // err says more
			return nil, err
		}
		q.nodes = append(q.nodes, node)
	}
	return q, nil
}

// RenewAll sends the requests to all nodes at the same time.
func (q *quorum) RenewAll(ctx context.Context, names []string) error {
	if !(&quorumHeld{q: q}).majority(func(_ int, node *redisScripts) bool { return node.renewAll(ctx, names) == nil }) {
		return errLost
	}
	return nil
}

func (q *quorum) Close() error {
	for _, node := range q.nodes {
		_ = node.Close() // never fails
	}
	return nil
}

func (q *quorum) Lock(ctx context.Context, name string) (Held, error) {
	stored, ok := q.gates.Load(name)
	if !ok {
		stored, _ = q.gates.LoadOrStore(name, make(chan struct{}, 1))
	}
	gate := stored.(chan struct{})
	select {
	case gate <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		h := &quorumHeld{q: q, name: name, id: newID(), asked: make([]chan struct{}, len(q.nodes))}
		if h.acquire(ctx) {
			return &hold{release: func(ctx context.Context) error {
				defer func() { <-gate }()
				return h.release(ctx)
			}}, nil
		}
		_ = h.release(ctx) // of a minority
		if err := pause(ctx, retryAfter); err != nil {
			<-gate
			return nil, err
		}
	}
}

type quorumHeld struct {
	q        *quorum
	name, id string
	asked    []chan struct{} // closed on the node's answer: the DEL must not overtake the SET
}

// majority reports whether a majority of nodes agrees, as soon as that is
// known.
func (h *quorumHeld) majority(ask func(i int, node *redisScripts) bool) bool {
	n := len(h.q.nodes)
	votes := make(chan bool, n)
	for i, node := range h.q.nodes {
		go func() { votes <- ask(i, node) }() // ends when the answer arrives
	}
	yes, no := 0, 0
	for yes <= n/2 && no <= n/2 {
		if <-votes {
			yes++
		} else {
			no++
		}
	}
	return yes > n/2
}

func (h *quorumHeld) acquire(ctx context.Context) bool {
	for i := range h.asked {
		h.asked[i] = make(chan struct{})
	}
	return h.majority(func(i int, node *redisScripts) bool {
		defer close(h.asked[i])
		return node.client.Do(ctx, node.client.B().Set().Key(h.name).Value(h.id).Nx().PxMilliseconds(heldTTL.Milliseconds()).Build()).Error() == nil
	})
}

func (h *quorumHeld) release(ctx context.Context) error {
	if !h.majority(func(i int, node *redisScripts) bool {
		<-h.asked[i]
		return released(node.run(ctx, 0, h.name, h.name, h.id)) == nil
	}) {
		return errLost
	}
	return nil
}
