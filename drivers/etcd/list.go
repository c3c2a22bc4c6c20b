package etcd

import (
	"context"
	"iter"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listSize is how many keys one request of List reads.
const listSize = 1000

// leaseKey is what the last parts of contenders' keys look like: a mode, a lease, and in this driver a number.
var leaseKey = regexp.MustCompile(`^(\+read-|write-)?[0-9a-f]{8,16}(-[0-9a-f]+)?$`)

var unflatten = strings.NewReplacer("%2F", "/", "%25", "%")

// List implements driver.Lister. Keys with a lease, and a last part that looks like one, are taken for contenders, as all clients of this
// protocol make them. Sealed names are left out.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if d.options.Flat {
			prefix = flatten.Replace(prefix)
		}
		from, end := d.options.Prefix+prefix, clientv3.GetPrefixRangeEnd(d.options.Prefix+prefix)
		if from == "" {
			from = "\x00" // and so is the end, which stands for all keys
		}
		for last := ""; ; {
			page, err := d.listPage(ctx, from, end)
			if err != nil {
				yield("", err)
				return
			}
			for _, kv := range page.Kvs {
				if name := d.nameOf(kv); name != "" && name != last {
					if last = name; !yield(name, nil) {
						return
					}
				}
			}
			if !page.More || len(page.Kvs) == 0 {
				return
			}
			from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		}
	}
}

func (d *Driver) listPage(ctx context.Context, from, end string) (*clientv3.GetResponse, error) {
	bounded, cancel := d.request(ctx, requestFor)
	defer cancel()
	// With their values: of keys alone, newer servers do not tell the lease.
	page, err := d.client.Get(bounded, from, clientv3.WithRange(end), clientv3.WithLimit(listSize))
	if err != nil {
		return nil, d.queryFault(ctx, err)
	}
	return page, nil
}

// nameOf returns the name that a key contends for, or "".
func (d *Driver) nameOf(kv *mvccpb.KeyValue) string {
	rest := string(kv.Key[len(d.options.Prefix):])
	slash := strings.LastIndexByte(rest, '/')
	if slash < 1 || kv.Lease == 0 || !utf8.ValidString(rest) {
		return ""
	}
	name, last := rest[:slash], rest[slash+1:]
	if above := strings.LastIndexByte(name, '/'); above > 0 && isRecipe([]byte(rest[above+1:])) {
		name = name[:above]
	} else if !leaseKey.MatchString(last) {
		return ""
	}
	if d.options.Flat {
		return unflatten.Replace(name)
	}
	return name
}
