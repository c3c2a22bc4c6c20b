package redisson

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/driver"
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
			if err := call(); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "cannot be used") {
				t.Errorf("%s of %q: got %v, want errors.ErrUnsupported with a reason", what, name, err)
			}
		}
	}
	for _, name := range []string{"dsync_fence:x", "dsync_fence", "dsync_fencer:{x}", "redisson_lock__channel:{x}", "redisson_rwlock:{x}", "redisson_sc:{x}",
		"x:timeout", "{x}timeout", "{dsync_fence:x}y", "x:rwlock_timeout:1"} {
		l, x := acquire(t, d, request(name)), acquire(t, fair, request("x"))
		release(t, x)
		release(t, l)
	}
}

// TestNamesInBraces: such a name would share channels and keys with the name
// inside the braces, so no call accepts it.
func TestNamesInBraces(t *testing.T) {
	s := testenv.Redis(t)
	d, fair := openURL(t, "redisson://%s", s.Addr), openURL(t, "redisson://%s?fair=true", s.Addr)
	ctx := t.Context()
	for _, name := range []string{"{x}", "{x y}", "{a}b}", "{}", "{a}}", "{}}"} {
		for what, call := range map[string]func() error{
			"Acquire":            func() error { _, err := d.Acquire(ctx, noWait(name)); return err },
			"fair Acquire":       func() error { _, err := fair.Acquire(ctx, noWait(name)); return err },
			"Acquire to read":    func() error { _, err := d.Acquire(ctx, inMode(driver.Read, noWait(name))); return err },
			"Acquire to write":   func() error { _, err := d.Acquire(ctx, inMode(driver.Write, noWait(name))); return err },
			"Acquire of permits": func() error { _, err := d.Acquire(ctx, permits(1, 1, noWait(name))); return err },
			"SetLimit":           func() error { return d.SetLimit(ctx, name, 1) },
			"SetLatch":           func() error { _, err := d.SetLatch(ctx, name, "id", 1); return err },
			"Latch":              func() error { _, err := d.Latch(ctx, name); return err },
			"Inspect":            func() error { _, err := d.Inspect(ctx, name); return err },
			"ForceUnlock":        func() error { return d.ForceUnlock(ctx, name) },
			"Sealed":             func() error { _, _, err := d.Sealed(ctx, name); return err },
		} {
			if err := call(); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "braces") {
				t.Errorf("%s of %q: got %v, want errors.ErrUnsupported with a reason", what, name, err)
			}
		}
	}
	wantNoKeys(t, s)
}

// TestNamesShareNothing makes the keys and channels of very similar names, for
// drivers on one server and in a cluster.
func TestNamesShareNothing(t *testing.T) {
	t.Parallel()
	const hold = "00000000-0000-4000-8000-000000000000:1"
	parts := append([]string{"{", "}", "{", "}", "x", ":", "timeout", hold, readHold, "1", channelPrefix, readWritePrefix, permitPrefix, latchChannel}, keyPrefixes...)
	random := rand.New(rand.NewPCG(3, 4))
	names := make(map[string]bool)
	for range 50_000 {
		var name strings.Builder
		for range 1 + random.IntN(6) {
			name.WriteString(parts[random.IntN(len(parts))])
		}
		names[name.String()] = true
	}
	for _, d := range []*Driver{{}, inCluster} {
		owner := make(map[string]string)
		accepted := 0
		for name := range names {
			if d.checkName(name) != nil {
				continue
			}
			accepted++
			own := []string{name, endsKey(name), timeoutKey(driver.Read, name, hold)}
			for _, prefix := range keyPrefixes {
				own = append(own, prefixName(prefix, name))
			}
			for _, prefix := range []string{channelPrefix, readWritePrefix, permitPrefix} {
				own = append(own, "channel "+prefixName(prefix, name))
			}
			for _, key := range append(own, "channel "+latchChannelOf(name)) {
				if other, taken := owner[key]; taken {
					t.Errorf("%q belongs to %q and to %q", key, name, other)
				}
				owner[key] = name
			}
		}
		if accepted < 1000 {
			t.Errorf("names that can be used: got %d of %d", accepted, len(names))
		}
	}
}

func TestCheckClusterName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a{b}c": true, "{a}b": true, "{a}{": true, "a{b}}": true, "{a}": false, "{a}}": false, "{a}b}": false, "日本": true, "x y": true,
		"a{": false, "{}": false, "{}x": false, "a}b": false, "}": false, "{a": false, "a{}b{c}": false, "a{b": false,
	} {
		err := inCluster.checkName(name)
		if (err == nil) != ok || err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%q: got %v, want it accepted: %t", name, err, ok)
		}
	}
}

// TestSlots compares slots with the server's, for names with all kinds of
// braces.
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
		for _, prefix := range []string{channelPrefix, tokenPrefix} {
			if got := slotOf(prefixName(prefix, name)); int64(got) != want {
				t.Errorf("slot of %s of %q: got %d, want %d", prefix, name, got, want)
			}
		}
		for _, d := range []*Driver{{sequences: "dsync_fence:"}, {sequences: "dsync_fence:a tenant:"}} {
			if key := d.sequenceOf(name); int64(slotOf(key)) != want || inCluster.checkName(key) == nil {
				t.Errorf("sequence of %q: got %q in the slot %d, want the slot %d, and a refusal as a name", name, key, slotOf(key), want)
			}
		}
	}
	if accepted < 1000 {
		t.Errorf("names that a cluster can have: got %d of %d", accepted, len(names))
	}
}
