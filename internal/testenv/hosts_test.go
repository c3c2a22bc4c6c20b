package testenv

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSilence lets each of three hosts continuously send datagrams to the
// others and checks which of them arrive.
func TestSilence(t *testing.T) {
	h := NewHosts(t, 3)
	addrs := make([]string, 3)
	for i, at := range h.hosts {
		addrs[i] = fmt.Sprintf("%s:%d", at.ip, freePort(t))
	}
	beacons := make([]*Process, 3)
	for i, at := range h.hosts {
		beacons[i] = spawn(t, at, "beacon", "DSYNC_TEST_BEACON="+strings.Join(append([]string{addrs[i]}, addrs...), " "))
	}
	heard := func(from, to int) (n int) {
		beacons[to].Send(addrs[from])
		if _, err := fmt.Sscan(beacons[to].Line(), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	type link struct{ from, to int }
	all := []link{{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}}
	for _, silent := range [][]link{nil, {{0, 1}}, {{1, 0}}, {{0, 1}, {1, 0}}, {{2, 0}, {2, 1}}, nil} {
		h.Heal()
		for _, l := range silent {
			h.Silence(l.from, l.to)
		}
		before := make(map[link]int)
		for range 2 { // packets in flight arrive in the first round
			for _, l := range all {
				before[l] = heard(l.from, l.to)
			}
			for _, l := range all {
				if !slices.Contains(silent, l) {
					Eventually(t, func() bool { return heard(l.from, l.to) > before[l]+20 }, fmt.Sprintf("%v arrives while %v are silent", l, silent))
				}
			}
		}
		for _, l := range silent {
			if got := heard(l.from, l.to); got != before[l] {
				t.Errorf("%d datagrams of the silent link %v arrived", got-before[l], l)
			}
		}
	}
}

// beacon sends datagrams to others. For each input line, which is an address,
// it writes how many datagrams came from there.
func beacon() {
	addrs := strings.Fields(os.Getenv("DSYNC_TEST_BEACON")) // its own first
	socket, err := net.ListenPacket("udp4", addrs[0])
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	count := make(map[string]int)
	go func() { // ends when the process ends, like the next one
		for buffer := make([]byte, 1); ; {
			if _, from, err := socket.ReadFrom(buffer); err == nil {
				mu.Lock()
				count[from.String()]++
				mu.Unlock()
			}
		}
	}()
	go func() {
		for ; ; time.Sleep(time.Millisecond) {
			for _, addr := range addrs[1:] {
				if to, err := net.ResolveUDPAddr("udp4", addr); err == nil && addr != addrs[0] {
					_, _ = socket.WriteTo([]byte{0}, to)
				}
			}
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		mu.Lock()
		fmt.Println(count[in.Text()])
		mu.Unlock()
	}
}

// TestHostsEnd checks for remains of hosts and a frozen server on one of them,
// after their test and after the end of its process.
func TestHostsEnd(t *testing.T) {
	var s *RedisServer
	var link string
	got := outcomeOf(t, func(tb testing.TB) {
		s = frozenOnHost(tb)
		link = linkTo(tb, s.Addr)
	})
	switch {
	case got.skipped:
		t.Skip(got.text)
	case got.failed:
		t.Fatal(got.text)
	}
	if _, err := net.InterfaceByName(link); err == nil || !s.proc.ended() {
		t.Error("the test has ended, but its link or its server still exists")
	}

	p := Spawn(t, "hosts", "TMPDIR="+t.TempDir())
	var pid int
	if _, err := fmt.Sscan(p.Line(), &link, &pid); err != nil {
		t.Fatal(err)
	}
	keepers := childPids(p.Pid())
	if _, err := net.InterfaceByName(link); err != nil || gone(pid) || len(keepers) != 4 {
		t.Fatalf("got link %v, server gone=%t, children %v, want a link, a server, and 4 children with it", err, gone(pid), keepers)
	}
	p.Kill()
	for _, pid := range keepers {
		Eventually(t, func() bool { return gone(pid) }, "a process of hosts is gone")
	}
	Eventually(t, func() bool { _, err := net.InterfaceByName(link); return err != nil }, "the link to the hosts is gone")
}

// frozenOnHost starts a server on one of two hosts.
func frozenOnHost(tb testing.TB) *RedisServer {
	s := redisAt(tb, NewHosts(tb, 2).hosts[1], nil)
	s.Freeze()
	return s
}

// hostsRole makes hosts and waits for the end of its process.
func hostsRole() {
	tb := &outcome{}
	s := frozenOnHost(tb)
	fmt.Println(linkTo(tb, s.Addr), s.Pid())
	select {}
}

// linkTo returns the name of the device whose network contains an address.
func linkTo(tb testing.TB, addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	all, err := net.Interfaces()
	if err != nil {
		tb.Fatal(err)
	}
	for _, device := range all {
		networks, _ := device.Addrs() // none for a device that is being removed
		for _, network := range networks {
			if n, ok := network.(*net.IPNet); ok && strings.HasPrefix(device.Name, "dsync") && n.Contains(net.ParseIP(host)) {
				return device.Name
			}
		}
	}
	tb.Fatal("no link to ", addr)
	return ""
}

func TestMissingHosts(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, ci := range []string{"", "true"} {
		t.Setenv("CI", ci)
		got := outcomeOf(t, func(tb testing.TB) { NewHosts(tb, 2) })
		if got.failed != (ci != "") || got.skipped != (ci == "") || !strings.Contains(got.text, "TestInner is UNTESTED") {
			t.Errorf("CI=%q: got failed=%t skipped=%t %q", ci, got.failed, got.skipped, got.text)
		}
	}
}
