package bench

import (
	"os"
	"testing"

	"github.com/go-dsync/dsync/internal/testenv"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMonitorCountsWhatClientsSendAndNotWhatScriptsDo(t *testing.T) {
	servers := []*testenv.RedisServer{testenv.Redis(t), testenv.Redis(t)}
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	monitored := Servers{Counter: func(tb testing.TB) counter { return monitored(tb, addrs) }}
	got := monitored.Count(t, func() {
		servers[0].Do("SET", "a", "1")
		servers[0].Do("EVAL", "redis.call('SET', KEYS[1], '2') return redis.call('GET', KEYS[1])", "1", "a")
		servers[1].Do("GET", "a")
	})
	if got != 3 {
		t.Errorf("got %d requests, want 3", got)
	}
}

func TestScriptRunsCountsScriptsAndNotWhatTheyDo(t *testing.T) {
	servers := []*testenv.RedisServer{testenv.Redis(t), testenv.Redis(t)}
	const script = "redis.call('SET', KEYS[1], '2') return redis.call('GET', KEYS[1])"
	sha := servers[0].Do("SCRIPT", "LOAD", script).(string)
	got := scriptRuns(servers, func() {
		servers[0].Do("EVALSHA", sha, "1", "a")
		servers[0].Do("SET", "a", "1")
		servers[1].Do("EVAL", script, "1", "a")
	})
	if got != 2 {
		t.Errorf("got %d runs of scripts, want 2", got)
	}
}
