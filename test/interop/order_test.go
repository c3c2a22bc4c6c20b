package interop

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

// arrivals watches the commands of a server. It determines the order in which
// clients requested fair locks, and reports a grant that overtook an earlier
// request. The order is certain, because the server executes one script at a
// time.
type arrivals struct {
	mu         sync.Mutex
	locks      map[string]*arrivalsOf
	grants     int // of a lock with other waiters
	overtaking []overtaking
}

// arrivalsOf is the state of one lock.
type arrivalsOf struct {
	name    string
	seen    int
	waiting []arrival // waiters, including any that other clients removed
	left    arrival   // the last client that left the queue, possibly to acquire the lock
	story   []string  // the last commands
}

type arrival struct {
	hold  string
	place int
	at    time.Time
}

// overtaking is a grant to a client that arrived after a client that is still
// waiting.
type overtaking struct {
	name string
	by   arrival
	who  arrival
	at   time.Time

	story []string // the last commands before it
}

func (o overtaking) String() string {
	return fmt.Sprintf("%s: %s was granted to %s, whose request came %v later than that of %s", o.at.Format("15:04:05.000"), o.name, o.by.hold,
		o.by.at.Sub(o.who.at), o.who.hold)
}

// watchArrivals starts watching locks. The returned function stops that when
// all earlier commands of the server have been seen.
func watchArrivals(t *testing.T, server *testenv.RedisServer, names []string) (_ *arrivals, stop func()) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	in := bufio.NewReaderSize(conn, 1<<20)
	fmt.Fprint(conn, "MONITOR\r\n")
	if line, err := in.ReadString('\n'); line != "+OK\r\n" {
		t.Fatalf("MONITOR: got %q, %v", line, err)
	}
	a := newArrivals(names)
	done := make(chan struct{})
	last := fresh("last")
	go func() { // ends when the connection is closed
		defer close(done)
		for {
			line, err := in.ReadString('\n')
			if err != nil || strings.Contains(line, last) {
				return
			}
			a.line(line)
		}
	}()
	return a, func() {
		server.Do("EXISTS", last)
		<-done
	}
}

func newArrivals(names []string) *arrivals {
	a := &arrivals{locks: make(map[string]*arrivalsOf)}
	for _, name := range names {
		l := &arrivalsOf{name: name}
		a.locks[name], a.locks["redisson_lock_queue:"+tagged(name)], a.locks["redisson_lock_timeout:"+tagged(name)] = l, l, l
	}
	return a
}

// line parses a line of MONITOR: +1700000000.123456 [0 lua] "command"
// "argument" ...
func (a *arrivals) line(line string) {
	head, rest, ok := strings.Cut(line, `] "`)
	if !ok {
		return
	}
	var words []string
	for quoted := range strings.SplitSeq(`"`+strings.TrimSpace(rest), `" "`) {
		word, err := strconv.Unquote(`"` + strings.Trim(quoted, `"`) + `"`)
		if err != nil {
			return
		}
		words = append(words, word)
	}
	seconds, micros, _ := strings.Cut(strings.TrimPrefix(strings.Fields(head)[0], "+"), ".")
	s, _ := strconv.ParseInt(seconds, 10, 64)
	us, _ := strconv.ParseInt(micros, 10, 64)
	a.command(time.Unix(s, 1000*us), words)
}

func (a *arrivals) command(at time.Time, words []string) {
	if len(words) < 2 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.locks[words[1]]
	if l == nil {
		return
	}
	if len(l.story) >= 5000 {
		l.story = slices.Delete(l.story, 0, 2500)
	}
	l.story = append(l.story, at.Format("15:04:05.000000 ")+strings.Join(words, " "))
	command, isQueue := strings.ToLower(words[0]), words[1] != l.name
	switch {
	case isQueue && len(words) == 3 && (command == "rpush" || command == "lpush"):
		l.arrive(at, words[2])
	case isQueue && command == "lrem" && len(words) == 4:
		l.leave(words[3])
	case !isQueue && len(words) == 4 && words[3] == "1" && (command == "hset" || command == "hincrby"):
		a.granted(l, at, words[2])
	}
}

// arrive records a request. A client that was removed and sends another request
// keeps its place.
func (l *arrivalsOf) arrive(at time.Time, hold string) {
	if l.index(hold) < 0 {
		l.seen++
		l.waiting = append(l.waiting, arrival{hold, l.seen, at})
	}
}

func (l *arrivalsOf) index(hold string) int {
	return slices.IndexFunc(l.waiting, func(w arrival) bool { return w.hold == hold })
}

func (l *arrivalsOf) leave(hold string) {
	if i := l.index(hold); i >= 0 {
		l.left = l.waiting[i]
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// granted looks for clients that arrived earlier. It reports each of them once.
func (a *arrivals) granted(l *arrivalsOf, at time.Time, hold string) {
	l.leave(hold)
	by := l.left
	if by.hold != hold { // it did not need to wait
		l.seen++
		by = arrival{hold, l.seen, at}
	}
	l.left = arrival{}
	if len(l.waiting) > 0 {
		a.grants++
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w arrival) bool {
		if w.place < by.place {
			a.overtaking = append(a.overtaking, overtaking{l.name, by, w, at, slices.Clone(l.story)})
		}
		return w.place < by.place
	})
}

// TestArrivals tests the judge.
func TestArrivals(t *testing.T) {
	for _, c := range []struct {
		what, script string
		grants       int
		want         string // which client overtook which
	}{
		{"in order", "rpush a, rpush b, lrem a, hset a, lrem b, hset b", 1, ""},
		{"java in order", "rpush a, rpush b, lpop, zrem a, hset a, lpop, hset b", 1, ""},
		{"at once", "hset a, rpush b, lrem b, hset b", 0, ""},
		{"a waiter that gave up", "rpush a, rpush b, lrem a, lrem b, hset b", 0, ""},
		{"overtaken", "rpush a, rpush b, lrem b, hset b, lrem a, hset a", 1, "a by b"},
		{"removed and overtaken by all", "rpush a, rpush b, lpop, lpop, hset b, hset c, rpush a, hset a", 1, "a by b"},
		{"removed, and first again", "rpush a, rpush b, lpop, lpush a, lrem a, hset a, lrem b, hset b", 1, ""},
		{"overtaken without having waited", "rpush a, hset b", 1, "a by b"},
		{"asks again", "rpush a, hset a, rpush b, rpush a, hset b, hset a", 1, ""},
	} {
		a := newArrivals([]string{"x"})
		for i, step := range strings.Split(c.script, ", ") {
			command, hold, _ := strings.Cut(step, " ")
			text := map[string]string{"rpush": `"RPUSH" "redisson_lock_queue:{x}" "%s"`, "lpush": `"LPUSH" "redisson_lock_queue:{x}" "%s"`,
				"lrem": `"lrem" "redisson_lock_queue:{x}" "0" "%s"`, "lpop": `"lpop" "redisson_lock_queue:{x}"%.0s`,
				"zrem": `"zrem" "redisson_lock_timeout:{x}" "%s"`, "hset": `"HSET" "x" "%s" "1"`}[command]
			a.line(fmt.Sprintf("+170000000%d.123456 [0 lua] "+text+"\r\n", i, hold))
		}
		var got string
		for _, o := range a.overtaking {
			got += o.who.hold + " by " + o.by.hold
		}
		if got != c.want || a.grants != c.grants {
			t.Errorf("%s: got %q overtaken and %d grants, want %q and %d", c.what, got, a.grants, c.want, c.grants)
		}
	}
}
