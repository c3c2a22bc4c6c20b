package stress

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// requestsToRedis are the commands that drivers send. Commands inside scripts
// are not included, because a script that is stopped halfway was not refused.
var requestsToRedis = strings.Fields("evalsha eval script subscribe ssubscribe unsubscribe sunsubscribe ping hello client info time wait pubsub " +
	"set get del exists type scan config cluster")

// redisRefusals makes servers refuse commands. pick chooses the servers each
// time. A single server can also become a replica of a master that does not
// exist, and a server with a directory can fail to write to it.
func redisRefusals(tb testing.TB, pick func(*rand.Rand) []*testenv.RedisServer, alone, disk bool) (all []refusal) {
	add := func(name string, begin, end []string) {
		all = append(all, refusal{name, func(c *cell) func() {
			var chiefs []*redisChief
			for _, s := range pick(c.random) {
				chief := dialRedis(tb, s)
				chief.do(begin...)
				chiefs = append(chiefs, chief)
			}
			return func() {
				for _, chief := range chiefs {
					chief.do(end...)
					chief.Close()
				}
			}
		}})
	}
	for range 5 { // as often as all other refusals together
		all = append(all, refusal{"NOPERM", func(c *cell) func() {
			var ends []func()
			for _, s := range pick(c.random) {
				sent := s.Commands()
				commands := slices.DeleteFunc(slices.Clone(requestsToRedis), func(command string) bool { return sent[command] == 0 })
				command := commands[c.random.IntN(len(commands))]
				c.own.Note("refused: " + command)
				chief := dialRedis(tb, s)
				chief.do("ACL SETUSER default -" + command)
				ends = append(ends, func() {
					chief.do("ACL SETUSER default +@all")
					chief.Close()
				})
			}
			return func() {
				for _, end := range ends {
					end()
				}
			}
		}})
	}
	kill := []string{"CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub"}
	add("NOAUTH", append([]string{"ACL SETUSER default off"}, kill...), []string{"ACL SETUSER default on"})
	add("max number of clients", append([]string{"CONFIG SET maxclients 1"}, kill...), []string{"CONFIG SET maxclients 10000"})
	add("NOSCRIPT", []string{"SCRIPT FLUSH"}, nil)
	policy := "noeviction"
	if disk { // the settings with which the bed was started
		policy = "allkeys-random"
	}
	add("OOM", []string{"CONFIG SET maxmemory-policy noeviction maxmemory 1"}, []string{"CONFIG SET maxmemory 0 maxmemory-policy " + policy})
	add("NOREPLICAS", []string{"CONFIG SET min-replicas-to-write 9"}, []string{"CONFIG SET min-replicas-to-write 0"})
	if alone {
		add("READONLY", []string{"REPLICAOF 127.0.0.1 1"}, []string{"REPLICAOF NO ONE"})
		add("MASTERDOWN", []string{"CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"},
			[]string{"REPLICAOF NO ONE", "CONFIG SET replica-serve-stale-data yes"})
	}
	if disk { // a directory has the name of the file
		add("MISCONF", []string{`CONFIG SET save "3600 1000000"`, "BGSAVE"}, []string{`CONFIG SET save ""`})
	}
	return append(all, refusal{"BUSY", func(c *cell) func() {
		var ends []func()
		for _, s := range pick(c.random) {
			ends = append(ends, keepBusy(tb, s))
		}
		return func() {
			for _, end := range ends {
				end()
			}
		}
	}})
}

// keepBusy runs a script on a server until the returned function is called.
func keepBusy(tb testing.TB, s *testenv.RedisServer) (end func()) {
	chief, script := dialRedis(tb, s), dialRedis(tb, s)
	chief.do("CONFIG SET busy-reply-threshold 20")
	script.send(`EVAL "while true do end" 0`)
	return func() {
		done := make(chan string)
		go func() { done <- script.line() }() // ends when the script is killed
		for {
			chief.try("SCRIPT KILL") // an error until the script is slow
			select {
			case <-done:
				chief.Close()
				script.Close()
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// redisRefused returns the number of commands that servers have refused.
func redisRefused(servers ...*testenv.RedisServer) func() int64 {
	return func() (n int64) {
		for _, s := range servers {
			text, _ := s.Do("INFO", "errorstats").(string)
			for line := range strings.Lines(text) {
				if _, count, ok := strings.Cut(strings.TrimSpace(line), "count="); ok {
					one, _ := strconv.ParseInt(count, 10, 64)
					n += one
				}
			}
		}
		return n
	}
}

// redisChief is a connection of a separate user, whose commands the server
// never refuses.
type redisChief struct {
	net.Conn
	tb testing.TB
	in *bufio.Reader
}

func dialRedis(tb testing.TB, s *testenv.RedisServer) *redisChief {
	tb.Helper()
	s.Do("ACL", "SETUSER", "chief", "on", "nopass", "~*", "&*", "+@all")
	conn, err := net.DialTimeout("tcp", s.Addr, patience)
	if err != nil {
		tb.Fatal(err)
	}
	r := &redisChief{conn, tb, bufio.NewReader(conn)}
	r.do("AUTH chief nopass")
	return r
}

// do sends commands whose answers are one line.
func (r *redisChief) do(commands ...string) {
	for _, command := range commands {
		if answer := r.try(command); strings.HasPrefix(answer, "-") || answer == "" {
			r.tb.Errorf("redis at %s: %s: %q", r.RemoteAddr(), command, answer)
		}
	}
}

func (r *redisChief) try(command string) string {
	r.send(command)
	return r.line()
}

func (r *redisChief) send(command string) {
	_ = r.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(r, command, "\r\n") // on an error the answer is empty
}

func (r *redisChief) line() string {
	line, _ := r.in.ReadString('\n')
	return strings.TrimSpace(line)
}

// takeOverRedis makes each of several servers fail over to a replica and back,
// without losing data.
func takeOverRedis(tb testing.TB, servers []*testenv.RedisServer) (replicas []*testenv.RedisServer, takeOver func(*cell, int) (string, func())) {
	for _, s := range servers {
		host, port, _ := strings.Cut(s.Addr, ":")
		replicas = append(replicas, testenv.Redis(tb, "--replicaof", host, port))
	}
	active := make([][2]*testenv.RedisServer, len(servers))
	for i := range servers {
		active[i] = [2]*testenv.RedisServer{servers[i], replicas[i]}
	}
	return replicas, func(_ *cell, i int) (string, func()) {
		old, next := active[i][0], active[i][1]
		testenv.Eventually(tb, func() bool { return redisInfo(next, "replication", "master_link_status") == "up" }, "the replica is in step")
		host, port, _ := strings.Cut(next.Addr, ":")
		old.Do("FAILOVER", "TO", host, port)
		testenv.Eventually(tb, func() bool {
			return redisInfo(next, "replication", "role") == "master" && redisInfo(old, "replication", "role") == "slave"
		}, "the replica has taken over")
		active[i] = [2]*testenv.RedisServer{next, old}
		return next.Addr, func() {}
	}
}
