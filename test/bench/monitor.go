package bench

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// monitored counts the commands that clients send to servers of Redis. It listens to MONITOR, since the statistics of the server count what
// scripts do like what clients do.
func monitored(tb testing.TB, addrs []string) counter {
	tb.Helper()
	type count struct {
		n   int64
		err error
	}
	counts := make([]chan count, len(addrs)) // one for each mark
	monitors := make([]*monitor, len(addrs))
	var readers sync.WaitGroup
	stop := sync.OnceFunc(func() {
		for _, m := range monitors {
			if m != nil {
				m.conn.Close()
			}
		}
		readers.Wait()
	})
	for i, addr := range addrs {
		m, err := newMonitor(addr)
		if err != nil {
			stop()
			tb.Fatal(err)
		}
		monitors[i], counts[i] = m, make(chan count, 1)
		readers.Go(func() { // ends with the connection
			for total := int64(0); ; {
				n, err := m.count()
				total += n
				counts[i] <- count{total, err}
				if err != nil {
					return
				}
			}
		})
	}
	read := func() (n int64) {
		tb.Helper()
		for i, addr := range addrs {
			if err := sendMark(addr, monitors[i].mark); err != nil {
				tb.Fatal(err)
			}
			c := <-counts[i]
			if c.err != nil {
				tb.Fatal(c.err)
			}
			n += c.n
		}
		return n
	}
	return counter{read, stop}
}

// scriptRuns counts the runs of scripts that clients ask servers of Redis for while during runs, by the statistics of the servers.
func scriptRuns(servers []*testenv.RedisServer, during func()) int64 {
	runs := func() (n int64) {
		for _, s := range servers {
			commands := s.Commands()
			n += commands["eval"] + commands["evalsha"]
		}
		return n
	}
	before := runs()
	during()
	return runs() - before
}

// redisLeft counts keys, those of them that will not end by themselves, and memory.
func redisLeft(servers []*testenv.RedisServer) Sample {
	s := make(Sample)
	for _, server := range servers {
		keys, forGood, bytes := server.Kept()
		s["left at server"] += float64(keys)
		s["left for good"] += float64(forGood)
		s["server B"] += float64(bytes)
	}
	return s
}

// monitor is a connection on which a server tells all that it does, up to a mark.
type monitor struct {
	conn net.Conn
	in   *bufio.Reader
	mark string
}

func newMonitor(addr string) (*monitor, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn, bufio.NewReaderSize(conn, 1<<20), newID()}
	if _, err = fmt.Fprint(conn, "MONITOR\r\n"); err == nil {
		_, err = m.in.ReadString('\n') // +OK
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return m, nil
}

func sendMark(addr, mark string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "ECHO %s\r\n", mark); err != nil {
		return err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

// count returns how many commands came before the mark, those of scripts apart.
func (m *monitor) count() (n int64, err error) {
	err = m.each(func(string) error {
		n++
		return nil
	})
	return n, err
}

// each calls f for the commands before the mark, those of scripts apart.
func (m *monitor) each(f func(command string) error) error {
	for {
		line, err := m.in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("monitor: %w", err)
		}
		if strings.Contains(line, m.mark) {
			return nil
		}
		where, command, _ := strings.Cut(line, "]")
		if strings.HasSuffix(where, " lua") {
			continue
		}
		if err := f(command); err != nil {
			return err
		}
	}
}
