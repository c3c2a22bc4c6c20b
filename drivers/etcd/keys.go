package etcd

import (
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var flatten = strings.NewReplacer("%", "%25", "/", "%2F")

// dir returns what the keys of all contenders for a name begin with.
func (d *Driver) dir(name string) string {
	if d.options.Flat {
		name = flatten.Replace(name)
	}
	return d.options.Prefix + name + "/"
}

// newKey returns a key that no other attempt has. It begins as that of package concurrency, which is the lease alone.
func (d *Driver) newKey(dir string, id clientv3.LeaseID) string {
	b := make([]byte, 0, len(dir)+32)
	b = append(b, dir...)
	b = strconv.AppendUint(b, uint64(id), 16)
	b = append(b, '-')
	b = strconv.AppendUint(b, d.number.Add(1), 16)
	return string(b)
}

// contender returns the first of kvs that contends for the lock of dir itself, and not for one whose name is below it.
func contender(dir string, kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	for _, kv := range kvs {
		if isContender(dir, kv) {
			return kv
		}
	}
	return nil
}

func isContender(dir string, kv *mvccpb.KeyValue) bool {
	for _, c := range kv.Key[len(dir):] {
		if c == '/' {
			return false
		}
	}
	return true
}
