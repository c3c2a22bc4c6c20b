package zk

import (
	"net/url"
	"strings"
	"testing"
)

// FuzzDir has a path made of any name: one that ZooKeeper accepts, that no other name has, and no part of which contends for a lock.
func FuzzDir(f *testing.F) {
	for _, name := range []string{"orders/42", "/", "//a//", "..", "a/./b", "zookeeper", "100%", "\u0080😀", "_c_x-lock-0000000001", "\xff"} {
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
		for part := range strings.SplitSeq(path[1:], "/") {
			if _, ok := contenderOf(part); ok || isBase(part) || part == "zookeeper" && strings.HasPrefix(path, "/zookeeper") {
				t.Fatalf("%q: part %q of the path %q means something else", name, part, path)
			}
		}
	})
}
