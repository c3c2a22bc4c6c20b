package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	_ "github.com/go-dsync/dsync/drivers/sqllock"
	_ "github.com/go-dsync/dsync/drivers/zk"
)

// BackendFlags are the flags of commands that inspect one backend.
type BackendFlags struct{ Connect time.Duration }

func (f *BackendFlags) Add(c *cobra.Command) {
	AddURL(c)
	c.Flags().DurationVar(&f.Connect, "connect", 10*time.Second, "how long to try to reach the backend")
}

// Backend is the backend that a command inspects.
type Backend struct {
	Client *dsync.Client
	Driver driver.Driver
	URL    *driver.URL
}

// Valid returns an error for invalid flags.
func (f *BackendFlags) Valid() error {
	if f.Connect <= 0 {
		return Usage(errors.New("--connect must be positive"))
	}
	return nil
}

// open opens the backend that the command's flags name.
func (f *BackendFlags) open(c *cobra.Command) (*Backend, error) {
	raw, err := BackendURL(c)
	if err == nil {
		err = f.Valid()
	}
	if err != nil {
		return nil, err
	}
	return f.OpenURL(c.Context(), raw)
}

// OpenURL opens a backend within --connect.
func (f *BackendFlags) OpenURL(ctx context.Context, raw string) (*Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, f.Connect)
	defer cancel()
	return OpenBackend(ctx, raw)
}

// OpenBackend opens a backend as programs do. Opening does not acquire a lock.
func OpenBackend(ctx context.Context, raw string) (*Backend, error) {
	d, config, err := driver.Open(ctx, raw)
	if err != nil {
		return nil, err
	}
	client, err := dsync.New(d, &dsync.Options{TTL: config.TTL, Floor: config.Floor})
	if err != nil {
		return nil, errors.Join(err, CloseDriver(d))
	}
	return &Backend{client, d, config.URL}, nil
}

func (b *Backend) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseLimit)
	defer cancel()
	return b.Client.Close(ctx)
}

// WithBackend calls f with the backend of a command and then closes the
// backend.
func (f *BackendFlags) WithBackend(c *cobra.Command, do func(b *Backend) error) error {
	b, err := f.open(c)
	if err != nil {
		return err
	}
	if err = do(b); err != nil && errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("backend %s: %w", b.Client.Info().Name, err)
	}
	if closing := b.Close(); err == nil {
		err = closing
	}
	return err
}

const CloseLimit = 5 * time.Second

func CloseDriver(d driver.Driver) error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseLimit)
	defer cancel()
	return d.Close(ctx)
}

// List returns the held names with a prefix. If more is set, the backend has
// more names than it returned.
func (b *Backend) List(ctx context.Context, prefix string, most int) (names []string, more bool, err error) {
	lister, can := b.Driver.(driver.Lister)
	if !can {
		return nil, false, fmt.Errorf("the backend cannot list names: %w", errors.ErrUnsupported)
	}
	names = []string{}
	for name, err := range lister.List(ctx, prefix) {
		if err != nil {
			return nil, false, err
		}
		if more = len(names) == most; more {
			break
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), more, nil
}

func Bounds(i driver.Info) string {
	s := "any"
	const longest = 100 * 365 * 24 * time.Hour // no program needs such a name
	switch {
	case i.MinTTL > 0 && i.MaxTTL > 0 && i.MaxTTL < longest:
		s = fmt.Sprintf("%v to %v", i.MinTTL, i.MaxTTL)
	case i.MinTTL > 0:
		s = fmt.Sprintf("%v or longer", i.MinTTL)
	case i.MaxTTL > 0:
		s = fmt.Sprintf("up to %v", i.MaxTTL)
	}
	if i.TTLUnit > 0 {
		s += fmt.Sprintf(", multiples of %v", i.TTLUnit)
	}
	return s
}
