package stress

import (
	"testing"
	"time"
)

// memoryBed returns a bed of one process that contains the backend and three
// clients.
func memoryBed(tb testing.TB) *bed {
	b := &bed{name: "memory", clients: 3, pace: 3 * time.Millisecond}
	b.url = func([]string) string { return "memory://stress?ttl=" + TTL.String() }
	return b.ask(tb)
}
