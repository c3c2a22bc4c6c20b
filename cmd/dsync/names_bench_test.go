package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
	"github.com/go-dsync/dsync/conformance/wire"
	"github.com/go-dsync/dsync/internal/testenv"
)

// BenchmarkNames moves 10,000 idle names from Redis to etcd over links that add
// a millisecond per round trip. It reports the seconds of each command without
// a rate limit: -bench Names -benchtime 1x.
func BenchmarkNames(b *testing.B) {
	const names, way = 10_000, 500 * time.Microsecond
	far := func(addr string) string {
		w := &wire.Wire{}
		b.Cleanup(w.Close)
		addr, err := w.Listen(addr)
		if err != nil {
			b.Fatal(err)
		}
		w.Delay(wire.Both, way)
		return addr
	}
	for b.Loop() {
		b.StopTimer()
		from, to := "redisson://"+far(testenv.Redis(b).Addr), "etcd://"+far(testenv.Etcd(b).Addr)+fmt.Sprintf("/locks/?floor=%d", uint64(1)<<52)
		var list strings.Builder
		for i := range names {
			fmt.Fprintf(&list, "orders/%d\n", i)
		}
		file := filepath.Join(b.TempDir(), "names.txt")
		if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		for _, command := range []string{"seal --all --rate 0", "status", "finalize"} {
			args := append([]string{"migrate"}, strings.Fields(command)...)
			args = append(args, "--from", from, "--to", to, "--names", file)
			var errors bytes.Buffer
			begun := time.Now()
			if status := run(context.Background(), args, strings.NewReader(""), io.Discard, &errors); status != cli.ExitDone {
				b.Fatalf("%s: status %d: %s", command, status, &errors)
			}
			b.ReportMetric(time.Since(begun).Seconds(), "s/"+args[1])
		}
	}
}
