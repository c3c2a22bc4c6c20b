package bench

import (
	"context"
	"strings"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	_ "github.com/go-dsync/dsync/drivers/zk"
)

// ours makes a row of dsync on the backend of a URL scheme. rest is the part of
// the URL after the hosts. The TTL is in the URL, so that the locks use the
// session that Open creates.
func ours(name, scheme, rest string, in ...int) *Row {
	path, parameters, _ := strings.Cut(rest, "?")
	return &Row{Name: name, Kind: Ours, In: in, Open: func(ctx context.Context, addrs []string) (Locker, error) {
		c, err := dsync.Open(ctx, scheme+"://"+strings.Join(addrs, ",")+path+"?ttl="+heldTTL.String()+"&"+parameters, nil)
		if err != nil {
			return nil, err
		}
		return dsyncLocker{client: c}, nil
	}}
}

// with makes a row of dsync that calls Lock with options. If after is not nil,
// the row calls it with each lease.
func with(r *Row, after func(*dsync.Lease), options ...dsync.LockOption) *Row {
	open := r.Open
	r.Open = func(ctx context.Context, addrs []string) (Locker, error) {
		l, err := open(ctx, addrs)
		if err != nil {
			return nil, err
		}
		return dsyncLocker{l.(dsyncLocker).client, options, after}, nil
	}
	return r
}

// reads makes a row of dsync that acquires names for reading.
func reads(scheme, rest string, in ...int) *Row {
	r := with(ours("dsync, Read", scheme, rest, in...), nil, dsync.Read())
	r.Shared = true
	return r
}

type dsyncLocker struct {
	client  *dsync.Client
	options []dsync.LockOption
	after   func(*dsync.Lease)
}

func (l dsyncLocker) Lock(ctx context.Context, name string) (Held, error) {
	lease, err := l.client.Lock(ctx, name, l.options...)
	if err != nil {
		return nil, err
	}
	if l.after != nil {
		l.after(lease)
	}
	return dsyncHeld{lease}, nil
}

func (l dsyncLocker) Close() error { return l.client.Close(context.Background()) }

type dsyncHeld struct{ *dsync.Lease }

func (h dsyncHeld) Release(ctx context.Context) error { return h.Unlock(ctx) }
