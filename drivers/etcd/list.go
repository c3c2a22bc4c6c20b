package etcd

import (
	"context"
	"iter"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listSize is how many keys one request of List reads.
const listSize = 1000

// leaseKey is what the last parts of contenders' keys look like: a mode, a lease, and in this driver a number.
var leaseKey = regexp.MustCompile(`^(\+read-|write-|permits-[0-9]+of[0-9]+-)?[0-9a-f]{8,16}(-[0-9a-f]+)?$`)

var unflatten = strings.NewReplacer("%2F", "/", "%25", "%")

// List implements driver.Lister. Keys with a lease, and a last part that looks
// like one, are taken for contenders, as all clients of this protocol make
// them. All is read as of one revision: where a page ends, a name whose
// contenders come and go would be missed. A List that takes longer than the
// server keeps old revisions fails.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		wanted := prefix
		if d.options.Flat {
			prefix = flatten.Replace(prefix)
		}
		from, end := d.options.Prefix+prefix, clientv3.GetPrefixRangeEnd(d.options.Prefix+prefix)
		if from == "" {
			from = "\x00" // and so is the end, which stands for all keys
		}
		for revision, more := int64(0), true; more; {
			var names []string
			answer, err := d.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(listSize),
				clientv3.WithKeysOnly()))
			if err == nil {
				if revision == 0 {
					revision = answer.Header.Revision
				}
				page := answer.Responses[0].GetResponseRange()
				if more = page.More && len(page.Kvs) > 0; more {
					from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
				}
				names, err = d.namesAmong(ctx, page.Kvs, revision)
			}
			if err != nil {
				yield("", err)
				return
			}
			for _, name := range names {
				if !strings.HasPrefix(name, wanted) { // the lease in its key begins like the end of the prefix
					continue
				}
				if !yield(name, nil) {
					return
				}
			}
		}
	}
}

// namesAmong returns the names that some keys contend for. Newer servers tell the lease of a key together with its value alone, so the keys
// that look like contenders are read once more; values of other keys, which may be large, are not.
func (d *Driver) namesAmong(ctx context.Context, keys []*mvccpb.KeyValue, revision int64) (names []string, err error) {
	var runs []clientv3.Op // of keys without others in between
	for i, first := 0, -1; i <= len(keys); i++ {
		if i < len(keys) {
			if name, sealed := strings.CutSuffix(string(keys[i].Key), sealSuffix); sealed {
				names = append(names, d.unescaped(strings.TrimPrefix(name, d.options.Prefix)))
			}
		}
		switch looks := i < len(keys) && d.nameOf(keys[i].Key) != ""; {
		case looks && first < 0:
			first = i
		case !looks && first >= 0:
			runs = append(runs, clientv3.OpGet(string(keys[first].Key), clientv3.WithRange(string(keys[i-1].Key)+"\x00"), clientv3.WithRev(revision)))
			first = -1
		}
	}
	for some := range slices.Chunk(runs, maxCombined) {
		answer, err := d.read(ctx, some...)
		if err != nil {
			return nil, err
		}
		for _, run := range answer.Responses {
			for _, kv := range run.GetResponseRange().Kvs {
				if kv.Lease != 0 {
					names = append(names, d.nameOf(kv.Key))
				}
			}
		}
	}
	return slices.Compact(names), nil
}

// read carries out some reads with one request.
func (d *Driver) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	bounded, cancel := d.asks.under(ctx)
	defer cancel()
	answer, err := d.transact(bounded, nil, ops, nil)
	if err != nil {
		return nil, d.queryFault(ctx, err)
	}
	return answer, nil
}

// nameOf returns the name that a key with a lease contends for, or "".
func (d *Driver) nameOf(key []byte) string {
	rest := string(key[len(d.options.Prefix):])
	slash := strings.LastIndexByte(rest, '/')
	if slash < 1 || !utf8.ValidString(rest) {
		return ""
	}
	name, last := rest[:slash], rest[slash+1:]
	if above := strings.LastIndexByte(name, '/'); above > 0 && isRecipe([]byte(rest[above+1:])) {
		name = name[:above]
	} else if !leaseKey.MatchString(last) {
		return ""
	}
	return d.unescaped(name)
}

// unescaped returns the name that stands in a key.
func (d *Driver) unescaped(name string) string {
	if d.options.Flat {
		return unflatten.Replace(name)
	}
	return name
}
