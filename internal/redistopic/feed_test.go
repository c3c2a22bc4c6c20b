package redistopic

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/lifecycle"
	"github.com/go-dsync/dsync/internal/redisdial"
	"github.com/go-dsync/dsync/internal/testenv"
)

func TestMain(m *testing.M) { testenv.NoLeaks(m) }

// hangGuard is not an expectation of how long something takes.
const hangGuard = 30 * time.Second

// connectBy returns a function for Options.Connect.
func connectBy(addr string, dial redisdial.Func) func(string) (Conn, bool) {
	return func(string) (Conn, bool) {
		o := redisdial.Defaults("test")
		o.InitAddress, o.ForceSingleClient, o.DialCtxFn = []string{addr}, true, dial
		client, err := rueidis.NewClient(o)
		if err != nil {
			return Conn{}, false
		}
		c, _ := client.Dedicate()
		end := func() {
			c.Close()
			client.Close()
		}
		return Conn{DedicatedClient: c, End: end}, true
	}
}

// listen returns a Listener that ends when the test ends.
func listen(t *testing.T, sharded bool, connect func(string) (Conn, bool)) *Listener {
	t.Helper()
	life := lifecycle.New()
	ln := New(Options{
		Life:    life,
		Kinds:   func() (bool, bool) { return !sharded, sharded },
		Connect: connect,
	})
	t.Cleanup(func() {
		ln.Close()
		life.End()
		life.Wait()
	})
	return ln
}

// awaitWake waits until a waiter of the topic is woken.
func awaitWake(t *testing.T, topic *Topic, why string) {
	t.Helper()
	select {
	case <-topic.Wake:
	case <-time.After(hangGuard):
		t.Fatalf("no waiter sends a request, although %s", why)
	}
}

// TestRefusals checks that the client library does not panic when the server
// refuses commands. When the server accepts commands again, messages arrive and
// the feed leaves unused channels.
func TestRefusals(t *testing.T) {
	for _, refusal := range []string{
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"NOPERM this user has no permissions to run the command",
		"NOPERM User limited has no permissions to run the 'ping' command",
		"LOADING Redis is loading the dataset in memory",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"READONLY You can't write against a read only replica.",
		"NOAUTH Authentication required.",
		"ERR unknown command",
	} {
		for _, resp2 := range []bool{false, true} {
			for _, sharded := range []bool{false, true} {
				for _, words := range []string{"PING", "SUBSCRIBE", "PING SUBSCRIBE"} {
					code, _, _ := strings.Cut(refusal, " ")
					t.Run(fmt.Sprintf("%s of %s, RESP2 %t, sharded %t", code, words, resp2, sharded), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { testRefusal(t, refusal, words, resp2, sharded) })
					})
				}
			}
		}
	}
}

func testRefusal(t *testing.T, refusal, words string, resp2, sharded bool) {
	s := newServer(t, resp2)
	ln := listen(t, sharded, connectBy("server", s.dial))
	used := ln.Join("used", 0)
	awaitWake(t, used, "the server has confirmed the subscription")
	unused := ln.Join("unused", 0)
	awaitWake(t, unused, "the server has confirmed the subscription")
	s.refuse(refusal, words)
	before := s.refused.Load()
	unused.LeaveForGood()
	late := ln.Join("late", 0)
	testenv.Eventually(t, func() bool { return s.refused.Load() > before+1 }, "the server has refused requests")
	s.refuse("", "")
	awaitWake(t, late, "the server accepts subscriptions again")
	testenv.Eventually(t, func() bool { return ln.Own("unused") == 0 && s.count("unused") == 0 }, "the feed leaves the unused channel")
	for _, topic := range []*Topic{used, late} {
		for len(topic.Wake) > 0 {
			<-topic.Wake
		}
		s.publish(topic.hub.channel, sharded)
		awaitWake(t, topic, "there was a message")
	}
	if n := s.unsubscribed.Load(); n > 0 {
		t.Errorf("the server got %d requests to unsubscribe, whose refusal ends the process", n)
	}
}

// TestEveryMessageArrives: while a feed replaces its connection repeatedly, no
// message is missed.
func TestEveryMessageArrives(t *testing.T) {
	s := testenv.Redis(t)
	var conns atomic.Int64
	connect := connectBy(s.Addr, nil)
	ln := listen(t, false, func(node string) (Conn, bool) {
		conns.Add(1)
		return connect(node)
	})
	heard := make(chan struct{}, 1)
	stop := ln.Watch(func() {
		select {
		case heard <- struct{}{}:
		default:
		}
	}, "used")
	defer stop()
	<-heard // the server has confirmed the subscription
	messages, begun := 0, time.Now()
	for conns.Load() < 4 {
		if messages%10 == 0 {
			ln.Join(fmt.Sprint("unused", messages), 0).LeaveForGood()
		}
		select {
		case <-heard: // the second copy of an earlier message
		default:
		}
		s.Do("PUBLISH", "used", "0")
		select {
		case <-heard:
		case <-time.After(hangGuard):
			t.Fatalf("message %d was missed, after %d connections", messages, conns.Load())
		}
		messages++
	}
	if took := time.Since(begun); took < 2*leaveEvery {
		t.Errorf("the connection was replaced 3 times in %v, want at most once in %v", took, leaveEvery)
	}
	t.Logf("%d messages", messages)
}

// TestUnusedIsNoWaiter: until an unused channel is left, it counts as a
// subscription of this driver without a waiter.
func TestUnusedIsNoWaiter(t *testing.T) {
	s := testenv.Redis(t)
	ln := listen(t, false, connectBy(s.Addr, nil))
	want := func(channel string, own, unused int) {
		t.Helper()
		if gotOwn, gotUnused := ln.Own(channel), ln.Unused(channel); gotOwn != own || gotUnused != unused {
			t.Errorf("%s: got %d subscriptions, %d of them unused, want %d and %d", channel, gotOwn, gotUnused, own, unused)
		}
	}
	used, a := ln.Join("used", 0), ln.Join("a", 0)
	awaitWake(t, used, "the server has confirmed the subscription")
	awaitWake(t, a, "the server has confirmed the subscription")
	want("a", 1, 0)
	a.LeaveForGood() // leaves the channel immediately
	testenv.Eventually(t, func() bool { return ln.Own("a") == 0 && s.SubscriberCount("a") == 0 }, "the feed leaves the unused channel")
	want("used", 1, 0)

	b := ln.Join("b", 0)
	awaitWake(t, b, "the server has confirmed the subscription")
	b.LeaveForGood() // the last connection is too young to be replaced
	want("b", 1, 1)
	again := ln.Join("b", 0)
	if len(again.Wake) != 1 {
		t.Error("a waiter for a channel that was not left yet does not send a request immediately")
	}
	want("b", 1, 0)
	again.LeaveForGood()
	testenv.Eventually(t, func() bool { return s.SubscriberCount("b") == 0 }, "the feed leaves the unused channel")

	used.LeaveForGood()
	testenv.Eventually(t, func() bool { return s.SubscriberCount("used") == 0 && ln.Idle() }, "the feed leaves the last channel")
	last := ln.Join("last", 0)
	awaitWake(t, last, "the server has confirmed the subscription")
	last.LeaveForGood()
}

// TestUnusedChannelsAreBounded: if no new connection can be made, a feed gives
// up its connection rather than collect unused channels.
func TestUnusedChannelsAreBounded(t *testing.T) {
	s := testenv.Redis(t)
	var full atomic.Bool
	connect := connectBy(s.Addr, nil)
	ln := listen(t, false, func(node string) (Conn, bool) {
		if full.Load() {
			return Conn{}, false
		}
		return connect(node)
	})
	used := ln.Join("used", 0)
	awaitWake(t, used, "the server has confirmed the subscription")
	full.Store(true)
	for i := range maxUnused + 1 {
		ln.Join(fmt.Sprint("unused", i), 0).LeaveForGood()
	}
	testenv.Eventually(t, func() bool { return ln.Own("used") == 0 }, "the connection is given up")
	full.Store(false)
	awaitWake(t, used, "messages may have been missed")
	testenv.Eventually(t, func() bool { return ln.Own("unused0") == 0 && ln.Own("used") == 1 }, "the feed leaves the unused channels")
}

// TestStaleConnection: when the client uses another server, so does the feed,
// and waiters try.
func TestStaleConnection(t *testing.T) {
	servers := []*testenv.RedisServer{testenv.Redis(t), testenv.Redis(t)}
	var current atomic.Int64
	ln := listen(t, false, func(node string) (Conn, bool) {
		of := current.Load()
		conn, ok := connectBy(servers[of].Addr, nil)(node)
		conn.Stale = func() bool { return current.Load() != of }
		return conn, ok
	})
	topic := ln.Join("x", 0)
	awaitWake(t, topic, "the server has confirmed the subscription")
	current.Store(1)
	awaitWake(t, topic, "messages of the other server may have been missed")
	servers[1].Do("PUBLISH", "x", "0")
	awaitWake(t, topic, "there was a message")
	testenv.Eventually(t, func() bool { return servers[0].SubscriberCount("x") == 0 }, "the feed leaves the old server")
}

// server implements enough of the protocol for subscriptions, and refuses
// commands as a test requires.
type server struct {
	wg           sync.WaitGroup
	resp2        bool
	refused      atomic.Int64
	unsubscribed atomic.Int64

	mu      sync.Mutex
	refusal string
	words   []string
	conns   map[net.Conn]map[string]bool // channels
}

func newServer(t *testing.T, resp2 bool) *server {
	s := &server{resp2: resp2, conns: make(map[net.Conn]map[string]bool)}
	t.Cleanup(s.wg.Wait) // after the clients have ended
	return s
}

// dial is a redisdial.Func.
func (s *server) dial(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	client, conn := net.Pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[conn] = make(map[string]bool)
	s.wg.Go(func() { s.serve(conn) })
	return client, nil
}

func (s *server) refuse(refusal, words string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal, s.words = refusal, strings.Fields(words)
}

// count returns the number of connections that are subscribed to a channel.
func (s *server) count(channel string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, channels := range s.conns {
		if channels[channel] {
			n++
		}
	}
	return n
}

func (s *server) publish(channel string, sharded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "message"
	if sharded {
		kind = "smessage"
	}
	for conn, channels := range s.conns {
		if channels[channel] {
			fmt.Fprintf(conn, "%s3\r\n+%s\r\n+%s\r\n+0\r\n", s.push(), kind, channel)
		}
	}
}

func (s *server) push() string {
	if s.resp2 {
		return "*"
	}
	return ">"
}

func (s *server) serve(conn net.Conn) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
		conn.Close()
	}()
	r := bufio.NewReader(conn)
	for {
		words, err := readCommand(r)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, s.answer(conn, words)); err != nil {
			return
		}
	}
}

func readCommand(r *bufio.Reader) (words []string, err error) {
	var n int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		var size int
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, nil
}

func (s *server) answer(conn net.Conn, words []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	word := strings.ToUpper(words[0])
	if strings.HasSuffix(word, "UNSUBSCRIBE") {
		s.unsubscribed.Add(1)
	}
	for _, refused := range s.words {
		if strings.HasSuffix(word, refused) {
			s.refused.Add(1)
			return "-" + s.refusal + "\r\n"
		}
	}
	switch word {
	case "HELLO":
		if s.resp2 {
			return "-ERR unknown command 'HELLO'\r\n"
		}
		return "%2\r\n+version\r\n+7.0.15\r\n+proto\r\n:3\r\n"
	case "PING":
		if s.resp2 && len(s.conns[conn]) > 0 {
			return "*2\r\n+pong\r\n+\r\n"
		}
		return "+PONG\r\n"
	case "SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE":
		var all strings.Builder
		for _, channel := range words[1:] {
			if strings.HasSuffix(word, "UNSUBSCRIBE") {
				delete(s.conns[conn], channel)
			} else {
				s.conns[conn][channel] = true
			}
			fmt.Fprintf(&all, "%s3\r\n+%s\r\n+%s\r\n:1\r\n", s.push(), strings.ToLower(word), channel)
		}
		return all.String()
	}
	return "+OK\r\n"
}
