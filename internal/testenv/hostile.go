package testenv

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// HostileRedis starts a server that speaks the Redis protocol and looks like a sound one, but whose answers to all that matters are
// those that data describes: well formed, and of any kind. When data is at its end it answers 0. It returns the address.
func HostileRedis(tb testing.TB, data []byte) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	h := &hostile{data: data, conns: map[net.Conn]bool{}}
	h.wg.Go(func() { h.accept(listener) })
	tb.Cleanup(func() {
		listener.Close()
		h.end()
		h.wg.Wait()
	})
	return listener.Addr().String()
}

type hostile struct {
	wg sync.WaitGroup // ends with the listener and the connections

	mu    sync.Mutex
	data  []byte
	ended bool
	conns map[net.Conn]bool
}

func (h *hostile) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		h.mu.Lock()
		if h.ended {
			conn.Close()
		} else {
			h.conns[conn] = true
			h.wg.Go(func() { h.serve(conn) })
		}
		h.mu.Unlock()
	}
}

func (h *hostile) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for conn := range h.conns {
		conn.Close()
	}
}

func (h *hostile) serve(conn net.Conn) {
	defer conn.Close()
	c := newRESP(conn)
	for {
		request, err := c.read()
		if err != nil {
			return
		}
		args, _ := request.([]any)
		var words []string
		for _, arg := range args {
			words = append(words, fmt.Sprint(arg))
		}
		if len(words) == 0 {
			return
		}
		if _, err := io.WriteString(conn, h.answer(words)); err != nil {
			return
		}
	}
}

func (h *hostile) answer(words []string) string {
	switch strings.ToUpper(words[0]) {
	case "HELLO":
		return "%4\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n"
	case "INFO":
		info := "run_id:1\r\nuptime_in_seconds:1000000\r\nrole:master\r\nmaster_replid:1\r\nmaxmemory_policy:noeviction\r\n"
		return fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
	case "PING":
		return "+PONG\r\n"
	case "CLIENT", "SCRIPT":
		return "+OK\r\n"
	case "SUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE":
		var all strings.Builder
		for _, channel := range words[1:] {
			fmt.Fprintf(&all, ">3\r\n+%s\r\n$%d\r\n%s\r\n:1\r\n", strings.ToLower(words[0]), len(channel), channel)
		}
		return all.String()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var value strings.Builder
	h.data = writeValue(&value, h.data, 0)
	return value.String()
}

// writeValue writes the value that data begins to describe, and returns what follows.
func writeValue(w *strings.Builder, data []byte, depth int) []byte {
	if len(data) == 0 {
		w.WriteString(":0\r\n")
		return nil
	}
	kind, data := data[0], data[1:]
	n := 0
	if len(data) > 0 {
		n, data = int(data[0]), data[1:]
	}
	switch kind % 9 {
	case 0:
		w.WriteString("_\r\n")
	case 1:
		fmt.Fprintf(w, ":%d\r\n", int8(n))
	case 2:
		var wide [8]byte
		data = data[copy(wide[:], data):]
		fmt.Fprintf(w, ":%d\r\n", int64(binary.BigEndian.Uint64(wide[:])))
	case 3:
		n = min(n, len(data))
		fmt.Fprintf(w, "$%d\r\n%s\r\n", n, data[:n])
		data = data[n:]
	case 4:
		fmt.Fprintf(w, "+%d\r\n", n)
	case 5:
		words := []string{"ERR", "NOSCRIPT", "MOVED 1 127.0.0.1:1", "READONLY", "LOADING", "WRONGTYPE", "NOPERM", "OOM", "BUSY", "NOREPLICAS"}
		fmt.Fprintf(w, "-%s %d\r\n", words[n%len(words)], n)
	case 6:
		fmt.Fprintf(w, ",%d.5\r\n", n)
	case 7:
		fmt.Fprintf(w, "#%c\r\n", "tf"[n%2])
	case 8:
		if n %= 8; depth > 2 {
			n = 0
		}
		fmt.Fprintf(w, "*%d\r\n", n)
		for range n {
			data = writeValue(w, data, depth+1)
		}
	}
	return data
}
