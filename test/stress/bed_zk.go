package stress

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// zkBed returns a bed of one ZooKeeper server or of an ensemble.
func zkBed(tb testing.TB, servers ...*testenv.ZooKeeperServer) *bed {
	b := &bed{name: "zk", links: true, early: 50 * time.Millisecond}
	if len(servers) > 1 {
		b.name = fmt.Sprint("zk ×", len(servers))
	}
	for _, s := range servers {
		b.nodes = append(b.nodes, s)
	}
	b.url = func(addrs []string) string { return "zk://" + strings.Join(addrs, ",") + "?ttl=" + TTL.String() }
	z := zkAdmin{tb, servers}
	b.left, b.endSessions, b.strain = z.left, z.endSessions, z.strain
	if len(servers) > 1 {
		b.leader = func() int { return slices.IndexFunc(servers, (*testenv.ZooKeeperServer).Leads) }
		b.newLeader = func() { // the protocol offers no other way
			old := servers[b.leader()]
			old.Kill()
			testenv.Eventually(tb, func() bool { return b.leader() >= 0 }, "the others have a leader")
			old.Start()
		}
	}
	b.recover = 30 * time.Second
	g, front := zkGate(tb, b.addrs())
	b.refusals, b.refused, b.front = []refusal{g.refusal(answersOfZooKeeper)}, g.count.Load, front
	return b.ask(tb)
}

// zkOneAddressBed returns a bed of an ensemble behind one address.
func zkOneAddressBed(tb testing.TB) *bed {
	b := zkBed(tb, testenv.ZooKeeperEnsemble(tb, 3)...)
	b.name += " behind one address"
	return b.oneAddress(tb, b.nodes)
}

// zkApartBed returns a bed of an ensemble whose servers have separate hosts. A
// follower that does not hear from its leader gives up after twice the TTL, as
// with the usual settings and a TTL of 5 s.
func zkApartBed(tb testing.TB) *bed {
	hosts := testenv.NewHosts(tb, 3)
	b := zkBed(tb, testenv.ZooKeeperEnsembleOn(hosts, "tickTime=500", "syncLimit=8")...).apart(hosts)
	b.early = 250 * time.Millisecond // half a tick
	return b
}

// zkAdmin queries servers without the driver.
type zkAdmin struct {
	tb      testing.TB
	servers []*testenv.ZooKeeperServer
}

// command sends a four-letter command.
func (z zkAdmin) command(s *testenv.ZooKeeperServer, four string) string {
	c, err := net.DialTimeout("tcp", s.Addr, patience)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, four); err != nil {
		return ""
	}
	text, _ := io.ReadAll(c)
	return string(text)
}

// left lists the connections, and the sessions that have nodes according to the
// leader.
func (z zkAdmin) left([]string) (left []string) {
	leader := z.leader()
	for _, node := range z.nodes(leader) {
		left = append(left, "node "+node)
	}
	for i, s := range z.servers {
		for line := range strings.Lines(z.command(s, "cons")) {
			if strings.Contains(line, "sid=") {
				left = append(left, fmt.Sprintf("connection to server %d: %s", i, strings.TrimSpace(line)))
			}
		}
	}
	if len(left) == 0 {
		z.logStrays(leader)
	}
	return left
}

// logStrays logs nodes that followers keep although their leader does not have
// them. No client causes these.
func (z zkAdmin) logStrays(leader *testenv.ZooKeeperServer) {
	for end := time.Now().Add(TTL); ; time.Sleep(50 * time.Millisecond) {
		var strays []string
		for i, s := range z.servers {
			for _, node := range z.nodes(s) {
				if s != leader {
					strays = append(strays, fmt.Sprintf("node %s on server %d", node, i))
				}
			}
		}
		if len(strays) == 0 {
			return
		}
		if time.Now().After(end) {
			z.tb.Logf("followers have nodes that their leader does not have: %q", strays)
			return
		}
	}
}

// nodes returns the ephemeral nodes of a server, with their sessions.
func (z zkAdmin) nodes(s *testenv.ZooKeeperServer) (nodes []string) {
	session := ""
	for line := range strings.Lines(z.command(s, "dump")) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "0x"):
			session = strings.TrimSuffix(line, ":")
		case strings.HasPrefix(line, "/"):
			nodes = append(nodes, line+" of session "+session)
		}
	}
	return nodes
}

// strain reports only the number of requests, because the time that a server
// reports for a request is the time in its queue.
func (z zkAdmin) strain() (all strain) {
	for _, s := range z.servers {
		all.requests += s.Requests()
		z.command(s, "srst") // resets the counters
	}
	return all
}

// leader returns the leader, which is the server that knows all sessions.
func (z zkAdmin) leader() *testenv.ZooKeeperServer {
	if i := slices.IndexFunc(z.servers, (*testenv.ZooKeeperServer).Leads); i >= 0 {
		return z.servers[i]
	}
	return z.servers[0]
}

// endSessions closes every second session that has a node, as its client would,
// and returns their number.
func (z zkAdmin) endSessions() (n int) {
	i := 0
	for line := range strings.Lines(z.command(z.leader(), "dump")) {
		hex, ok := strings.CutPrefix(strings.TrimSpace(line), "0x")
		hex, ok2 := strings.CutSuffix(hex, ":")
		if !ok || !ok2 {
			continue
		}
		id, err := strconv.ParseUint(hex, 16, 64)
		if i++; err != nil || i%2 == 0 {
			continue
		}
		if z.endSession(id) == nil {
			n++
		}
	}
	return n
}

// endSession connects as the client of the session would, and closes the
// session.
func (z zkAdmin) endSession(id uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", z.leader().Addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	hello := binary.BigEndian.AppendUint32(nil, 44)
	hello = append(hello, make([]byte, 12)...) // protocol version, last transaction seen
	hello = binary.BigEndian.AppendUint32(hello, uint32(TTL.Milliseconds()))
	hello = binary.BigEndian.AppendUint64(hello, id)
	hello = binary.BigEndian.AppendUint32(hello, 16)
	hello = append(hello, sessionPassword(id)...)
	if _, err := c.Write(hello); err != nil {
		return err
	}
	answer := make([]byte, 20)
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if got := binary.BigEndian.Uint64(answer[12:]); got != id {
		return fmt.Errorf("session %x: the server answers with %x", id, got)
	}
	closeSession := int32(-11)
	bye := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8, 0, 0, 0, 1}, uint32(closeSession))
	if _, err := c.Write(bye); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, c)
	return err
}

// sessionPassword computes the password that a server gives to a session: 16
// bytes of java.util.Random, seeded with the number of the session and a
// constant.
func sessionPassword(id uint64) []byte {
	const multiplier, mask = 0x5DEECE66D, 1<<48 - 1
	state := (id ^ 0xB3415C00 ^ multiplier) & mask
	var password []byte
	for len(password) < 16 {
		state = (state*multiplier + 0xB) & mask
		password = binary.LittleEndian.AppendUint32(password, uint32(state>>16))
	}
	return password
}
