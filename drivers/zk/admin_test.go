package zk_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/internal/drivertest"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestListOfManyNames lists names below a node whose children fill more than
// the library's buffer of 1.5 MB.
func TestListOfManyNames(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	long := strings.Repeat("x", 900)
	var nodes []any
	for i := range 2000 {
		nodes = append(nodes, &gozk.CreateRequest{Path: fmt.Sprintf("/%s%04d", long, i), Acl: gozk.WorldACL(gozk.PermAll)})
	}
	for some := range slices.Chunk(nodes, 500) {
		if _, err := c.Multi(some...); err != nil {
			t.Fatal(err)
		}
	}
	d := openURL(t, "zk://%s", s.Addr)
	want := []string{"short", "short/below", long + "0000", long + "1999/below"}
	for _, name := range want {
		acquire(t, d, request(name))
	}
	got, err := drivertest.Listed(t, t.Context(), openURL(t, "zk://%s", s.Addr), "")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("List: got %d names and %v, want %d", len(got), err, len(want))
	}
	before := s.Requests()
	if got, err = drivertest.Listed(t, t.Context(), d, "short/"); err != nil || !slices.Equal(got, want[1:2]) {
		t.Errorf("List: got %q and %v, want %q", got, err, want[1:2])
	}
	if requests := s.Requests() - before; requests > 50 {
		t.Errorf("List of the names below one name: got %d requests, although there are 2000 other names", requests)
	}
}

func TestListOfSilentServer(t *testing.T) {
	s := testenv.ZooKeeper(t)
	d := openURL(t, "zk://%s?ttl=4s", s.Addr)
	if names, err := drivertest.Listed(t, t.Context(), d, ""); err != nil || len(names) > 0 {
		t.Fatalf("got %q and %v", names, err)
	}
	drivertest.ListOfSilentServer(t, d, s.Freeze, s.Thaw)
}
