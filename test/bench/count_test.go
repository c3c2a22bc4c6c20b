package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

// TestCountSeesEachRequest has the floor lock a free name ten times, which is one request to take it and one to give it back.
func TestCountSeesEachRequest(t *testing.T) {
	const pairs = 10
	for _, b := range Backends {
		t.Run(b.Name, func(t *testing.T) {
			servers := b.Start(t, testenv.Storage{})
			l, err := free.floor(b).Open(t.Context(), servers.Addrs)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := pairOnce(t.Context(), l, "count"); err != nil {
				t.Fatal(err)
			}
			// A session may be kept alive meanwhile, and a node may be asked when the majority has answered already. Where that is late
			// for several pairs, their requests are missed in one row, and counted in the next.
			want := int64(2 * pairs * len(servers.Addrs))
			testenv.Eventually(t, func() bool {
				got := servers.Count(t, func() {
					for range pairs {
						if err := pairOnce(context.Background(), l, "count"); err != nil {
							t.Error(err)
						}
					}
				})
				return got >= want-int64(len(servers.Addrs)) && got <= want+2
			}, fmt.Sprintf("a row of pairs is counted as %d requests", want))
		})
	}
}

// TestCountSeesAStatementThatWaits: the server's statistics have statements that have ended.
func TestCountSeesAStatementThatWaits(t *testing.T) {
	servers := pgBackend.Start(t, testenv.Storage{})
	var clients [2]Locker
	for i := range clients {
		l, err := openPGConns(0, "")(t.Context(), servers.Addrs)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		clients[i] = l
	}
	requests := servers.Counter(t)
	defer requests.stop()
	before := requests.read()
	held, err := clients[0].Lock(t.Context(), "count")
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() { waited <- pairOnce(context.Background(), clients[1], "count") }() // ends when the lock is released
	testenv.Eventually(t, func() bool { return requests.read()-before == 2 }, "a lock and a wait are counted")
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return requests.read()-before == 4 }, "two locks and their releases are counted")
}
