package bench

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	_ "github.com/go-dsync/dsync/drivers/zk"
)

// ours makes a row of dsync on the backend of a URL scheme, with what follows the hosts in the URL. The TTL is in the URL, so that the
// session that Open makes is that of the locks.
func ours(name, scheme, rest string, o dsync.Options, in ...int) *Row {
	path, parameters, _ := strings.Cut(rest, "?")
	return &Row{Name: name, Kind: Ours, In: in, Open: func(ctx context.Context, addrs []string) (Locker, error) {
		c, err := dsync.Open(ctx, scheme+"://"+strings.Join(addrs, ",")+path+"?ttl="+heldTTL.String()+"&"+parameters, &o)
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

// oursWith makes a row of dsync whose locks are taken with an option.
func oursWith(option dsync.LockOption, name, scheme, rest string, in ...int) *Row {
	r := ours(name, scheme, rest, dsync.Options{}, in...)
	open := r.Open
	r.Open = func(ctx context.Context, addrs []string) (Locker, error) {
		l, err := open(ctx, addrs)
		if err != nil {
			return nil, err
		}
		return optionLocker{l.(dsyncLocker), option}, nil
	}
	return r
}

type optionLocker struct {
	dsyncLocker
	option dsync.LockOption
}

func (l optionLocker) Lock(ctx context.Context, name string) (Held, error) {
	lease, err := l.client.Lock(ctx, name, l.option)
	if err != nil {
		return nil, err
	}
	return dsyncLease{lease}, nil
}

// withToken makes a row of dsync that asks for the token of each lock.
func withToken(r *Row) *Row {
	open := r.Open
	r.Open = func(ctx context.Context, addrs []string) (Locker, error) {
		l, err := open(ctx, addrs)
		if err != nil {
			return nil, err
		}
		return tokenLocker{l.(dsyncLocker)}, nil
	}
	return r
}

type tokenLocker struct{ dsyncLocker }

func (l tokenLocker) Lock(ctx context.Context, name string) (Held, error) {
	lease, err := l.client.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	lease.Token()
	return dsyncLease{lease}, nil
}

type dsyncLease struct{ *dsync.Lease }

func (l dsyncLease) Release(ctx context.Context) error { return l.Unlock(ctx) }

// oursAlone makes a row of the driver without a client above it: each grant is the server's, in its order.
func oursAlone(name, scheme, rest string, in ...int) *Row {
	return &Row{Name: name, Kind: Ours, In: in, Open: func(ctx context.Context, addrs []string) (Locker, error) {
		d, _, err := driver.Open(ctx, scheme+"://"+strings.Join(addrs, ",")+rest)
		if err != nil {
			return nil, err
		}
		uuid := newID() + newID()
		return &driverLocker{driver: d, id: uuid[:8] + "-" + uuid[8:12] + "-4" + uuid[13:16] + "-8" + uuid[17:20] + "-" + uuid[20:32]}, nil
	}}
}

type driverLocker struct {
	driver driver.Driver
	id     string
	serial atomic.Uint64
}

// noEvents is for those who do not want to know.
type noEvents struct{}

func (noEvents) Waiting()    {}
func (noEvents) Tokens() int { return 1 }
func (noEvents) Lost(error)  {}

func (l *driverLocker) Lock(ctx context.Context, name string) (Held, error) {
	hold := l.id + ":" + strconv.FormatUint(l.serial.Add(1), 10)
	lease, err := l.driver.Acquire(ctx, &driver.Request{Name: name, Hold: hold, Owner: hold, TTL: heldTTL, Events: noEvents{}})
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (l *driverLocker) Close() error { return l.driver.Close(context.Background()) }
