package zk_test

import (
	"errors"
	"testing"

	gozk "github.com/go-zookeeper/zk"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/internal/testenv"
)

// TestNodesChangedByHand has an operator delete the nodes of holders and
// waiters, put other nodes in their place, or revoke the right to delete them.
func TestNodesChangedByHand(t *testing.T) {
	s := testenv.ZooKeeper(t)
	c := userClient(t, s.Addr)
	open := gozk.WorldACL(gozk.PermAll)
	must := func(tb testing.TB, errs ...error) {
		tb.Helper()
		if err := errors.Join(errs...); err != nil {
			tb.Fatal(err)
		}
	}
	create := func(node string) any { return &gozk.CreateRequest{Path: node, Data: []byte("by hand"), Acl: open} }
	replace := func(tb testing.TB, node string, by ...any) {
		tb.Helper()
		_, err := c.Multi(append([]any{&gozk.DeleteRequest{Path: node, Version: -1}}, by...)...)
		must(tb, err)
	}
	modes := map[string]func(r *driver.Request){
		"exclusive": func(r *driver.Request) {},
		"write":     func(r *driver.Request) { r.Mode = driver.Write },
		"read":      func(r *driver.Request) { r.Mode = driver.Read },
		"permits":   func(r *driver.Request) { r.Mode, r.Permits, r.Limit = driver.Permit, 2, 2 },
	}
	for how, change := range map[string]struct {
		do   func(tb testing.TB, node string)
		lost bool
	}{
		"deleted":  {func(tb testing.TB, node string) { replace(tb, node) }, true},
		"replaced": {func(tb testing.TB, node string) { replace(tb, node, create(node)) }, true},
		"replaced by a node with children": {func(tb testing.TB, node string) {
			replace(tb, node, create(node), create(node+"/child"))
		}, true},
		"overwritten": {func(tb testing.TB, node string) {
			_, err := c.Set(node, []byte("overwritten"), -1)
			must(tb, err)
		}, false},
	} {
		for mode, of := range modes {
			t.Run(how+" "+mode, func(t *testing.T) {
				for _, late := range []bool{false, true} {
					d, err := zk.New(guard(t), []string{s.Addr}, nil)
					must(t, err)
					if !late {
						d.CheckAfter(0)
					}
					r := request(mode)
					of(r)
					l := acquire(t, d, r)
					nodes := append(contenders(t, c, "/"+mode), leases(t, c, "/"+mode)...)
					change.do(t, nodes[0])
					if change.lost && !late {
						wantErr(t, "loss", lostBy(t, r), driver.ErrRemoved)
					}
					err = l.Release(guard(t))
					switch {
					case !change.lost && err != nil:
						t.Errorf("Release: got %v", err)
					case change.lost && (err == nil && how != "replaced" || err != nil && !errors.Is(err, driver.ErrNotHeld)):
						t.Errorf("Release: got %v, want %v", err, driver.ErrNotHeld)
					}
					if err := d.Close(guard(t)); err != nil {
						t.Errorf("Close: %v", err)
					}
					for _, node := range nodes {
						for _, left := range []string{node + "/child", node} {
							if err := c.Delete(left, -1); err != nil && !errors.Is(err, gozk.ErrNoNode) {
								t.Fatal(err)
							}
						}
					}
				}
			})
		}
	}
	t.Run("waiter", func(t *testing.T) {
		d, other := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
		l := acquire(t, other, request("w"))
		w := wait(t, d, request("w"))
		must(t, c.Delete(contenders(t, c, "/w")[1], -1))
		release(t, l)
		release(t, w.Granted(t))
	})
	t.Run("right taken away", func(t *testing.T) {
		d, other := openURL(t, "zk://%s", s.Addr), openURL(t, "zk://%s", s.Addr)
		l := acquire(t, d, request("acl"))
		_, err := c.SetACL("/acl", gozk.WorldACL(gozk.PermAll&^gozk.PermDelete), -1)
		must(t, err)
		wantErr(t, "Release", l.Release(guard(t)), driver.ErrUnknown)
		release(t, acquire(t, d, request("another")))
		acquire(t, other, request("acl")) // the node has gone with the session
	})
}
