package zk

import (
	"math"
	"net/url"
	"strings"
	"testing"

	"github.com/go-dsync/dsync/driver"
)

// FuzzDir makes a path of any name and checks that ZooKeeper accepts it, that
// no other name has it, and that no part of it contends for a lock.
func FuzzDir(f *testing.F) {
	for _, name := range []string{"orders/42", "/", "//a//", "..", "a/./b", "zookeeper", "100%", "\u0080😀", "_c_x-lock-0000000001", "a/locks", "a/leases", "leases", "a/x-lease-0000000001", "__READ__0000000001", "\xff"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		path := encode("", name)
		if err := checkChroot(path); err != nil && name != "" {
			t.Fatalf("%q: %v", name, err)
		}
		back, err := url.PathUnescape(path[1:])
		if err != nil || back != name {
			t.Fatalf("%q: the path %q stands for %q, %v", name, path, back, err)
		}
		if at := strings.LastIndexByte(path, '/'); at > 0 && (path[at+1:] == queuePart || path[at+1:] == leasesPart) {
			t.Fatalf("%q: the path %q is where others have permits", name, path)
		}
		for part := range strings.SplitSeq(path[1:], "/") {
			if _, ok := contenderOf(part); ok || isBase(part) || part == "zookeeper" && strings.HasPrefix(path, "/zookeeper") {
				t.Fatalf("%q: part %q of the path %q means something else", name, part, path)
			}
		}
	})
}

func TestContenders(t *testing.T) {
	for child, want := range map[string]contender{
		"_c_5f1d-lock-0000000007":          {mode: driver.Exclusive, seq: 7},
		"lock-2147483647":                  {mode: driver.Exclusive, seq: math.MaxInt32},
		"lock--2147483648":                 {mode: driver.Exclusive, seq: math.MinInt32},
		"lock--000000001":                  {mode: driver.Exclusive, seq: -1},
		"_c_5f1d-__READ__0000000007":       {mode: driver.Read, seq: 7},
		"_c_5f1d-__READ__-2147483648":      {mode: driver.Read, seq: math.MinInt32},
		"_c_5f1d-__WRIT__0000000007":       {mode: driver.Write, seq: 7},
		"_c_5f1d-__WRIT__-000000007":       {mode: driver.Write, seq: -7},
		"5f1d__lock__0000000007":           {mode: driver.Exclusive, seq: 7},
		"5f1d__rlock__0000000007":          {mode: driver.Read, seq: 7},
		"_c_5f1d-latch-0000000007":         {mode: driver.Exclusive, seq: 7},
		"_c_5f1d-lease-0000000007":         {mode: driver.Permit, seq: 7},
		"_c_5f1d-lease--2147483648":        {mode: driver.Permit, seq: math.MinInt32},
		"dsync-seal-5-latch-0000000007":    {mode: driver.Exclusive, seq: 7},
		"dsync-seal-5-__WRIT__0000000007":  {mode: driver.Write, seq: 7},
		"dsync-seal-5-ff-lock-0000000007":  {mode: driver.Exclusive, seq: 7},
		"_c_5f1d-lock-__READ__0000000007":  {mode: driver.Read, seq: 7},
		"_c_5f1d-__READ__-lock-0000000007": {mode: driver.Exclusive, seq: 7},
	} {
		want.child = child
		if got, ok := contenderOf(child); !ok || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", child, got, ok, want)
		}
	}
	for _, child := range []string{
		"", "7", "lock-", "__READ__", "lock-7", "__READ__00000000007", "__WRIT__000000007", "READ0000000007", "__read__0000000007", "lock-2147483648",
		"__WRIT__--000000007", "dsync-mark-5-lock-2147483647", "dsync-base-5-lock-2147483647",
	} {
		if c, ok := contenderOf(child); ok {
			t.Errorf("%q: got %+v, want no contender", child, c)
		}
	}
}

// TestOrderOfContenders checks that each contender of a list comes before all
// later ones.
func TestOrderOfContenders(t *testing.T) {
	for _, children := range [][]string{
		{"lock-2147483646", "b-__WRIT__2147483647", "a-__READ__2147483647", "lock--2147483648"},
		{"a-__WRIT__-000000001", "a-lock-0000000000", "b-__WRIT__0000000000", "0-__READ__0000000000", "1__rlock__0000000000", "lock-0000000001"},
	} {
		for i, a := range children {
			for j, b := range children {
				one, _ := contenderOf(a)
				other, _ := contenderOf(b)
				if got := one.before(other); got != (i < j) {
					t.Errorf("%q before %q: got %v", a, b, got)
				}
			}
		}
	}
}
