package zk_test

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/internal/testenv"
)

// apart is an ensemble of three with the usual settings, except for the tick.
type apart struct {
	hosts   *testenv.Hosts
	servers []*testenv.ZooKeeperServer
	tick    time.Duration
}

const syncLimit = 5

func newApart(tb testing.TB, tick time.Duration) apart {
	tb.Helper()
	ms := tick.Milliseconds()
	h := testenv.NewHosts(tb, 3)
	servers := testenv.ZooKeeperEnsembleOn(h, fmt.Sprintf("tickTime=%d", ms), "initLimit=10", fmt.Sprintf("syncLimit=%d", syncLimit),
		fmt.Sprintf("minSessionTimeout=%d", 2*ms), fmt.Sprintf("maxSessionTimeout=%d", 20*ms))
	return apart{h, servers, tick}
}

// url returns the URL of some of the servers, in this order.
func (a apart) url(ttl time.Duration, servers ...int) string {
	var addrs []string
	for _, i := range servers {
		addrs = append(addrs, a.servers[i].Addr)
	}
	return fmt.Sprintf("zk://%s?ttl=%v", strings.Join(addrs, ","), ttl)
}

// cut silences the traffic from a server to the others, or to it, or both.
func (a apart) cut(server int, out, in bool) {
	for i := range a.servers {
		if i != server && out {
			a.hosts.Silence(server, i)
		}
		if i != server && in {
			a.hosts.Silence(i, server)
		}
	}
}

var long = flag.Bool("long", false, "also cut servers off from each other with the usual tick and sessions of 6 s and 30 s")

// TestServersApart cuts the server of holders off from the others, while all
// clients reach all servers that they know. A client that knows only that
// server is notified of the loss before another client is granted the lock. A
// client that also knows the others keeps the lock.
func TestServersApart(t *testing.T) {
	const tick, usual = 500 * time.Millisecond, 2 * time.Second
	serversApart(t, tick, 6*tick)
	if *long {
		serversApart(t, usual, 3*usual)
		serversApart(t, usual, 15*usual)
	}
}

func serversApart(t *testing.T, tick, ttl time.Duration) {
	for _, leads := range []bool{false, true} {
		for _, way := range []struct {
			name    string
			out, in bool
		}{{"both ways", true, true}, {"out", true, false}, {"in", false, true}} {
			t.Run(fmt.Sprintf("%v, %s, leader %t", ttl, way.name, leads), func(t *testing.T) {
				if way.out != way.in {
					testenv.Long(t)
				}
				t.Parallel()
				a := newApart(t, tick)
				cut := slices.IndexFunc(a.servers, func(s *testenv.ZooKeeperServer) bool { return s.Leads() == leads })
				others := []int{(cut + 1) % 3, (cut + 2) % 3}
				one := a.contend(t, ttl, "one", []int{cut}, others)
				all := a.contend(t, ttl, "all", append([]int{cut}, others...), others)
				a.cut(cut, way.out, way.in)
				ended := time.Now().Add(a.tick*(syncLimit+3) + ttl) // by then all sessions that are not kept alive have ended
				one.overtaken(t)
				if !leads || ttl > 2*syncLimit*a.tick {
					all.keeps(t, time.Until(ended))
				} else { // the election of a leader takes about as long as a TTL
					all.keepsOrLoses(t, time.Until(ended))
				}
				a.hosts.Heal()
			})
		}
	}
}

// TestLeaderThatIsOver has the others elect a new leader immediately, while the
// old leader, which is cut off, still considers itself the leader.
func TestLeaderThatIsOver(t *testing.T) {
	t.Parallel()
	const tick = 2 * time.Second
	a := newApart(t, tick)
	old := slices.IndexFunc(a.servers, (*testenv.ZooKeeperServer).Leads)
	others := []int{(old + 1) % 3, (old + 2) % 3}
	c := a.contend(t, 3*tick, "a", []int{old}, others)
	a.cut(old, true, true)
	for _, i := range others {
		a.servers[i].Kill()
	}
	var starts sync.WaitGroup
	for _, i := range others { // each waits for the other
		starts.Go(a.servers[i].Start)
	}
	starts.Wait()
	c.overtaken(t)
	a.hosts.Heal()
}

// contest is a lock that one client holds while another client waits for it.
type contest struct {
	request *driver.Request
	held    driver.Lease
	next    chan driver.Lease // receives the waiter's lease
}

func (a apart) contend(tb testing.TB, ttl time.Duration, name string, holder, waiter []int) contest {
	tb.Helper()
	r := withTTL(request(name), ttl)
	l := acquire(tb, openURL(tb, "%s", a.url(ttl, holder...)), r)
	c := contest{r, l, make(chan driver.Lease, 1)}
	d := openURL(tb, "%s", a.url(ttl, waiter...))
	waits := wait(tb, d, withTTL(request(name), ttl))
	go func() { // ends when the driver ends
		for {
			<-waits.Done
			l, err := waits.End(tb)
			if err == nil {
				c.next <- l
			}
			if !errors.Is(err, driver.ErrUnavailable) { // as during an election
				if err != nil {
					tb.Logf("%s: the wait ended: %v", name, err)
				}
				return
			}
			waits = begin(d, withTTL(request(name), ttl))
		}
	}()
	return c
}

// granted returns the lease of the waiter. When servers elect a leader, all
// sessions start again.
func (c contest) granted(tb testing.TB) driver.Lease {
	tb.Helper()
	select {
	case l := <-c.next:
		return l
	case <-time.After(hangGuard + 2*c.request.TTL):
		tb.Fatalf("%s: the waiter is not granted the lock", c.request.Name)
		return nil
	}
}

// overtaken waits until the waiter is granted the lock, and checks that the
// holder was notified.
func (c contest) overtaken(tb testing.TB) {
	tb.Helper()
	next := c.granted(tb)
	margin := time.Since(c.held.Expires())
	tb.Logf("%s: granted %v after Expires of the previous lease", c.request.Name, margin)
	if margin < 0 {
		tb.Errorf("%s: granted %v before Expires of the previous lease", c.request.Name, -margin)
	}
	wantErr(tb, "loss", lostBy(tb, c.request), driver.ErrSessionEnded)
	release(tb, next)
}

// keepsOrLoses checks that the holder keeps the lock for some time, or that the
// waiter is granted the lock after the loss.
func (c contest) keepsOrLoses(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case l := <-c.next:
		c.next <- l
	case <-timer.C:
	}
	if time.Until(c.held.Expires()) > 0 {
		c.keeps(tb, 0)
	} else {
		c.overtaken(tb)
	}
}

// keeps checks that the holder keeps the lock for some time, and that the
// waiter is granted it afterwards.
func (c contest) keeps(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.next:
		tb.Fatalf("%s: the waiter was granted the lock, %v after Expires of the holder", c.request.Name, time.Since(c.held.Expires()))
	case <-timer.C:
	}
	if over := time.Since(c.held.Expires()); over > 0 {
		tb.Errorf("%s: the holder lost the lock %v ago", c.request.Name, over)
	}
	release(tb, c.held)
	release(tb, c.granted(tb))
}
