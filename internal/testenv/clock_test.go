package testenv_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-dsync/dsync/internal/testenv"
)

func TestRedisClockJumps(t *testing.T) {
	s, clock := testenv.RedisClock(t)
	off := func() time.Duration {
		seconds, err := strconv.ParseInt(s.Do("TIME").([]any)[0].(string), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(time.Unix(seconds, 0)).Round(time.Minute)
	}
	for _, want := range []time.Duration{0, time.Hour, -time.Hour} {
		clock.Set(want)
		if got := off(); got != want {
			t.Errorf("the server's clock is %v off, want %v", got, want)
		}
	}
	s.Restart()
	if got, want := off(), -time.Hour; got != want {
		t.Errorf("after a restart the server's clock is %v off, want %v", got, want)
	}
	clock.Set(0)
	s.Do("SET", "key", "value", "PX", "60000")
	clock.Set(2 * time.Minute)
	if got := s.Do("GET", "key"); got != nil {
		t.Errorf("a key that has expired by the server's clock: got %v, want none", got)
	}
}
