package redisson

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/testenv"
)

var inCluster = &Driver{cluster: true}

func TestPrefixName(t *testing.T) {
	for _, test := range []struct{ name, want string }{
		{"abc", "p:{abc}"},
		{"{a}:b", "p:{a}:b"},
		{"a{b", "p:a{b"},
		{"a}b", "p:{a}b}"},
		{"{}x", "p:{}x"},
		{"日本", "p:{日本}"},
		{" ", "p:{ }"},
	} {
		if got := prefixName("p", test.name); got != test.want {
			t.Errorf("%q: got %q, want %q", test.name, got, test.want)
		}
		if p, q := twoNames("p", "qq", test.name); p != test.want || q != "qq"+test.want[1:] {
			t.Errorf("%q: got %q and %q, want %q and the same with qq", test.name, p, q, test.want)
		}
	}
}

func TestNamesThatAreKeys(t *testing.T) {
	s := testenv.Redis(t)
	d, fair := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s?fair=true", s.Addr)
	for _, name := range []string{"dsync_fence:{x}", "dsync_holder:{x}", "dsync_turn:{x}", "dsync_moved:{x}", "redisson_lock_token:{x}", "redisson_lock_queue:{x}",
		"redisson_lock_timeout:{x}", "redisson_unlock_latch:{x}:0123", "dsync_fence:{t}:x", "redisson_lock_queue:a{b", "{x}:8743c9c0:41:rwlock_timeout:1", "{x}:timeout", "{t}:x:timeout"} {
		for what, call := range map[string]func() error{
			"Acquire":      func() error { _, err := d.Acquire(t.Context(), noWait(name)); return err },
			"fair Acquire": func() error { _, err := fair.Acquire(t.Context(), noWait(name)); return err },
			"Inspect":      func() error { _, err := d.Inspect(t.Context(), name); return err },
			"ForceUnlock":  func() error { return d.ForceUnlock(t.Context(), name) },
		} {
			if err := call(); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "belongs to") {
				t.Errorf("%s of %q: got %v, want errors.ErrUnsupported that says why", what, name, err)
			}
		}
	}
	for _, name := range []string{"dsync_fence:x", "dsync_fence", "dsync_fencer:{x}", "redisson_lock__channel:{x}", "redisson_rwlock:{x}", "redisson_sc:{x}",
		"x:timeout", "{x}timeout", "{dsync_fence:x}", "x:rwlock_timeout:1"} {
		l, x := acquire(t, d, request(name)), acquire(t, fair, request("x"))
		release(t, x)
		release(t, l)
	}
}

func TestCheckClusterName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a{b}c": true, "{a}": true, "{a}{": true, "{a}}": true, "日本": true, "x y": true,
		"a{": false, "{}": false, "{}x": false, "a}b": false, "}": false, "{a": false, "a{}b{c}": false, "a{b": false,
	} {
		err := inCluster.checkName(name)
		if (err == nil) != ok || err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%q: got %v, want it accepted: %t", name, err, ok)
		}
	}
}

// TestSlots compares with the server, for names of all kinds of braces.
func TestSlots(t *testing.T) {
	s := testenv.Redis(t, "--cluster-enabled", "yes")
	client := userClient(t, rueidis.ClientOption{InitAddress: []string{s.Addr}, ForceSingleClient: true})
	names := []string{"", "123456789", "{user1000}.following", "\xff\x00"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		name := make([]byte, random.IntN(8))
		for i := range name {
			name[i] = "{}ab"[random.IntN(4)]
		}
		names = append(names, string(name))
	}
	accepted := 0
	for _, name := range names {
		want, err := client.Do(t.Context(), client.B().ClusterKeyslot().Key(name).Build()).ToInt64()
		if err != nil {
			t.Fatal(err)
		}
		if got := slotOf(name); int64(got) != want {
			t.Errorf("slot of %q: got %d, want %d", name, got, want)
		}
		if inCluster.checkName(name) != nil {
			continue
		}
		accepted++
		for _, prefix := range []string{channelPrefix, fencePrefix, tokenPrefix} {
			if got := slotOf(prefixName(prefix, name)); int64(got) != want {
				t.Errorf("slot of %s of %q: got %d, want %d", prefix, name, got, want)
			}
		}
	}
	if accepted < 1000 {
		t.Errorf("names that a cluster can have: got %d of %d", accepted, len(names))
	}
}
