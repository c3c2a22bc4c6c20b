package bench

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/internal/testenv"
)

var redlockBackend = &Backend{
	Name:  "Redlock",
	Start: func(tb testing.TB, storage testenv.Storage) *Servers { return startRedis(tb, storage, 5) },
	Rows: []*Row{
		{Name: "floor: SET NX and DEL on 5 nodes", Kind: Floor, Open: openQuorum},
		{Name: "redsync (go-redis)", Kind: Peer, In: alone, Open: openRedsyncGoRedis},
		{Name: "redsync (rueidis)", Kind: Peer, Open: openRedsyncRueidis},
		ours("dsync", "redlock", "?durable=true", dsync.Options{}),
	},
}

// quorum is a majority of nodes, asked at the same time. Callers of one name wait for each other in the process, since those who split the
// votes get nowhere; against other processes they try again after a millisecond.
type quorum struct {
	nodes []rueidis.Client
	ttl   string
	sha   [2]string // release, renewal
	gates gates
}

const (
	valueRelease  = `if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])`
	valueRenewAll = `local n = 0
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[i + 1] then n = n + redis.call('PEXPIRE', key, ARGV[1]) end
end
return n`
)

func openQuorum(ctx context.Context, addrs []string) (Locker, error) {
	q := &quorum{ttl: strconv.FormatInt(heldTTL.Milliseconds(), 10)}
	for _, addr := range addrs {
		client, err := newRueidis(addr)
		if err == nil {
			q.nodes = append(q.nodes, client)
			for i, text := range []string{valueRelease, valueRenewAll} {
				if err == nil {
					q.sha[i], err = client.Do(ctx, client.B().ScriptLoad().Script(text).Build()).ToString()
				}
			}
		}
		if err != nil {
			_ = q.Close()
			return nil, err
		}
	}
	return q, nil
}

func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

func (q *quorum) Lock(ctx context.Context, name string) (Held, error) {
	if err := q.gates.enter(ctx, name); err != nil {
		return nil, err
	}
	for {
		h := &quorumHeld{q: q, name: name, id: newID(), asked: make([]chan struct{}, len(q.nodes))}
		if h.acquire(ctx) {
			return h, nil
		}
		h.undo(ctx)
		if err := pause(ctx, retryAfter); err != nil {
			q.gates.leave(name)
			return nil, err
		}
	}
}

// RenewAll asks all nodes, for many locks in one request each.
func (q *quorum) RenewAll(ctx context.Context, held []Held) error {
	keys, args := make([]string, 0, len(held)), make([]string, 0, len(held)+1)
	args = append(args, q.ttl)
	for _, h := range held {
		keys, args = append(keys, h.(*quorumHeld).name), append(args, h.(*quorumHeld).id)
	}
	answers := make(chan int64, len(q.nodes))
	for _, node := range q.nodes {
		go func() { // is waited for below
			n, _ := node.Do(ctx, node.B().Evalsha().Sha1(q.sha[1]).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToInt64()
			answers <- n
		}()
	}
	good := 0
	for range q.nodes {
		if <-answers == int64(len(held)) {
			good++
		}
	}
	if good < q.majority() {
		return errLost
	}
	return nil
}

func (q *quorum) Close() error {
	for _, c := range q.nodes {
		c.Close()
	}
	return nil
}

type quorumHeld struct {
	q        *quorum
	name, id string
	asked    []chan struct{} // closed when the node has answered: its DEL must not overtake its SET
}

// acquire returns as soon as the outcome is known.
func (h *quorumHeld) acquire(ctx context.Context) bool {
	votes := make(chan bool, len(h.q.nodes))
	for i, node := range h.q.nodes {
		asked := make(chan struct{})
		h.asked[i] = asked
		go func() { // ends with the answer, which undo and Release wait for
			defer close(asked)
			votes <- node.Do(ctx, node.B().Set().Key(h.name).Value(h.id).Nx().PxMilliseconds(heldTTL.Milliseconds()).Build()).Error() == nil
		}()
	}
	return decided(votes, len(h.q.nodes))
}

// decided reports whether there is a majority, as soon as that is known.
func decided(votes <-chan bool, n int) bool {
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

func (h *quorumHeld) undo(ctx context.Context) bool {
	votes := make(chan bool, len(h.q.nodes))
	for i, node := range h.q.nodes {
		go func() { // ends with the answer
			<-h.asked[i]
			n, err := node.Do(ctx, node.B().Evalsha().Sha1(h.q.sha[0]).Numkeys(1).Key(h.name).Arg(h.id).Build()).ToInt64()
			votes <- err == nil && n == 1
		}()
	}
	return decided(votes, len(h.q.nodes))
}

func (h *quorumHeld) Release(ctx context.Context) error {
	done := h.undo(ctx)
	h.q.gates.leave(h.name)
	if !done {
		return errLost
	}
	return nil
}

// gates lets one caller at a time through for each name, in the order in which they came.
type gates struct {
	mu   sync.Mutex
	busy map[string][]chan struct{}
}

func (g *gates) enter(ctx context.Context, name string) error {
	g.mu.Lock()
	if g.busy == nil {
		g.busy = make(map[string][]chan struct{})
	}
	line, busy := g.busy[name]
	if !busy {
		g.busy[name] = nil
		g.mu.Unlock()
		return nil
	}
	turn := make(chan struct{}, 1)
	g.busy[name] = append(line, turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		go func() { // ends when the turn comes, or with the process
			<-turn
			g.leave(name)
		}()
		return ctx.Err()
	}
}

func (g *gates) leave(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line := g.busy[name]
	if len(line) == 0 {
		delete(g.busy, name)
		return
	}
	g.busy[name] = line[1:]
	line[0] <- struct{}{}
}
