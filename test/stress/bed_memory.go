package stress

import (
	"testing"
	"time"
)

// memoryBed is a process with the backend inside, and three clients of it.
func memoryBed(tb testing.TB) *bed {
	b := &bed{name: "memory", clients: 3, pace: 3 * time.Millisecond}
	b.url = func([]string) string { return "memory://stress?ttl=" + TTL.String() }
	return b.ask(tb)
}
