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

// ours makes a row of dsync on the backend of a URL scheme, with what follows the hosts in the URL.
func ours(name, scheme, rest string, o dsync.Options, in ...int) *Row {
	return &Row{Name: name, Kind: Ours, In: in, Open: func(ctx context.Context, addrs []string) (Locker, error) {
		o.TTL = heldTTL
		c, err := dsync.Open(ctx, scheme+"://"+strings.Join(addrs, ",")+rest, &o)
		if err != nil {
			return nil, err
		}
		return dsyncLocker{c}, nil
	}}
}

type dsyncLocker struct{ client *dsync.Client }

func (l dsyncLocker) Lock(ctx context.Context, name string) (Held, error) {
	lease, err := l.client.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return dsyncLease{lease}, nil
}

func (l dsyncLocker) Close() error { return l.client.Close(context.Background()) }

type dsyncLease struct{ *dsync.Lease }

func (l dsyncLease) Release(ctx context.Context) error { return l.Unlock(ctx) }
