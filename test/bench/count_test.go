package bench

import (
	"context"
	"testing"
)

// TestCountSeesEachRequest has the floor lock a free name ten times, which is one request to take it and one to give it back.
func TestCountSeesEachRequest(t *testing.T) {
	const pairs = 10
	for _, b := range Backends {
		t.Run(b.Name, func(t *testing.T) {
			servers := b.Start(t)
			l, err := free.floor(b).Open(t.Context(), servers.Addrs)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := pairOnce(t.Context(), l, "count"); err != nil {
				t.Fatal(err)
			}
			got := servers.Count(t, func() {
				for range pairs {
					if err := pairOnce(context.Background(), l, "count"); err != nil {
						t.Error(err)
					}
				}
			})
			// A session may be kept alive meanwhile, and those nodes may be asked late, and not counted, that are no part of the majority,
			// as those of the pair before may be counted.
			nodes := int64(len(servers.Addrs))
			least, most := 2*pairs*(nodes/2+1)-1, 2*pairs*nodes+2*nodes
			if got < least || got > most {
				t.Errorf("got %d requests, want %d to %d", got, least, most)
			}
		})
	}
}
