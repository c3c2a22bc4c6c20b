package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"path"
	"strconv"
	"strings"

	gozk "github.com/go-zookeeper/zk"
)

const (
	// zkNodesAtMost limits the number of nodes that are inspected.
	zkNodesAtMost = 5000

	// A server refuses to read a transaction larger than twice its
	// jute.maxbuffer (1 MiB by default). The transaction that ends a session
	// contains the paths of all its ephemeral nodes.
	zkSessionMuch    = 1 << 20
	zkSessionTooMuch = 2 * zkSessionMuch / 10 * 9

	// zkNumbersMuch is half of the sequence numbers available below a node.
	zkNumbersMuch = 1 << 30
)

// zkTree describes the nodes of a server.
type zkTree struct {
	sessions map[uint64]int    // total bytes of the paths of a session's ephemeral nodes
	counters map[string]uint32 // the next sequence number below a node
	seen     int
	more     bool // not all nodes were inspected
}

func (n *zkTree) ephemeral(session uint64, node string) {
	n.sessions[session] += len(node) + 4 // as the server counts
}

// zkNodes checks the sizes of sessions and the counters of names.
func (x *examination) zkNodes(ctx context.Context, conn *gozk.Conn, hosts []string, config *tls.Config) {
	n := &zkTree{sessions: map[uint64]int{}, counters: map[string]uint32{}}
	n.walk(ctx, conn, path.Clean("/"+x.url.Path))
	for _, host := range hosts { // the first server that answers: each server knows all sessions
		if text, err := zkWord(ctx, host, config, "dump"); err == nil && strings.Contains(text, "Sessions with Ephemerals") {
			n.dump(text)
			break
		}
	}
	x.zkJudge(n)
}

// walk visits a node and its descendants.
func (n *zkTree) walk(ctx context.Context, conn *gozk.Conn, root string) {
	for nodes := []string{root}; len(nodes) > 0; nodes = nodes[1:] {
		if n.more = n.seen == zkNodesAtMost || ctx.Err() != nil; n.more {
			return
		}
		n.seen++
		children, stat, err := conn.Children(nodes[0])
		if err != nil {
			continue // it is gone, or the user may not read it, which the check of rights reports
		}
		if stat.EphemeralOwner != 0 {
			n.ephemeral(uint64(stat.EphemeralOwner), nodes[0])
			continue
		}
		// The server reports 2*creations - children.
		n.counters[nodes[0]] = uint32(stat.Cversion+stat.NumChildren) / 2
		for _, child := range children {
			nodes = append(nodes, path.Join(nodes[0], child))
		}
	}
}

// dump replaces the session data with the sessions in text, the response to the
// dump command.
func (n *zkTree) dump(text string) {
	n.sessions = map[uint64]int{}
	var session uint64
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if id, is := strings.CutSuffix(line, ":"); is && strings.HasPrefix(id, "0x") {
			session, _ = strconv.ParseUint(id[2:], 16, 64)
		} else if node, is := strings.CutPrefix(line, "\t"); is && strings.HasPrefix(node, "/") && session != 0 {
			n.ephemeral(session, node)
		}
	}
}

// zkJudge judges the collected data.
func (x *examination) zkJudge(n *zkTree) {
	if session, size := largest(n.sessions); size >= zkSessionMuch {
		l := warning
		if size >= zkSessionTooMuch {
			l = fault
		}
		x.bad(l, "session size", fmt.Sprintf("the session 0x%x has ephemeral nodes with %.1f MiB of paths: the transaction that ends it can stop all servers, "+
			"which read at most twice jute.maxbuffer", session, float64(size)/(1<<20)),
			"raise jute.maxbuffer on all servers before the client ends; then use fewer locks per client, or a newer dsync", seeZooKeeper)
	} else {
		x.good("session size", "the largest session has %.1f KiB of paths", float64(size)/(1<<10))
	}
	if node, next := largest(n.counters); next >= zkNumbersMuch {
		x.bad(warning, "counter", fmt.Sprintf("%s has had %d nodes: from number %d on, all new nodes have the same number, and the name is refused", node, next, int64(1)<<31-1),
			"deleteall "+node+" while no client uses the name: the numbers start again, and tokens do not fall", seeZooKeeper)
	} else {
		x.good("counter", "no name has had more than %d nodes, of %d", next, int64(1)<<31-1)
	}
	if n.more {
		x.bad(note, "counter", fmt.Sprintf("only the first %d nodes were checked", n.seen), "", seeZooKeeper)
	}
}

// largest returns the entry with the largest value, if the map is not empty.
func largest[K comparable, V cmp.Ordered](m map[K]V) (key K, value V) {
	for k, v := range m {
		if v > value {
			key, value = k, v
		}
	}
	return key, value
}
