package redisson

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync/internal/testenv"
)

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

func TestCheckClusterName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a{b}c": true, "{a}": true, "{a}{": true, "{a}}": true, "日本": true, "x y": true,
		"a{": false, "{}": false, "{}x": false, "a}b": false, "}": false, "{a": false, "a{}b{c}": false, "a{b": false,
	} {
		err := checkClusterName(name)
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
		if checkClusterName(name) != nil {
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
