package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// backendFlags are the flags of commands that look at one backend.
type backendFlags struct{ connect time.Duration }

func (f *backendFlags) add(c *cobra.Command) {
	addURL(c)
	c.Flags().DurationVar(&f.connect, "connect", 10*time.Second, "how long to try to reach the backend")
}

// backend is a backend that a command looks at.
type backend struct {
	client *dsync.Client
	driver driver.Driver
	url    *driver.URL
}

// valid returns an error for a flag that makes no sense.
func (f *backendFlags) valid() error {
	if f.connect <= 0 {
		return usageError{errors.New("--connect has to be positive")}
	}
	return nil
}

// open opens the backend that the flags of a command name.
func (f *backendFlags) open(c *cobra.Command) (*backend, error) {
	raw, err := backendURL(c)
	if err == nil {
		err = f.valid()
	}
	if err != nil {
		return nil, err
	}
	return f.openURL(c.Context(), raw)
}

// openURL opens a backend within --connect.
func (f *backendFlags) openURL(ctx context.Context, raw string) (*backend, error) {
	ctx, cancel := context.WithTimeout(ctx, f.connect)
	defer cancel()
	return openBackend(ctx, raw)
}

// openBackend opens a backend as programs do. Opening takes no lock.
func openBackend(ctx context.Context, raw string) (*backend, error) {
	d, config, err := driver.Open(ctx, raw)
	if err != nil {
		return nil, err
	}
	client, err := dsync.New(d, &dsync.Options{TTL: config.TTL, Floor: config.Floor})
	if err != nil {
		return nil, errors.Join(err, closeDriver(d))
	}
	return &backend{client, d, config.URL}, nil
}

func (b *backend) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return b.client.Close(ctx)
}

// withBackend calls f with the backend of a command, and closes the backend.
func (f *backendFlags) withBackend(c *cobra.Command, do func(b *backend) error) error {
	b, err := f.open(c)
	if err != nil {
		return err
	}
	if err = do(b); err != nil && errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("backend %s: %w", b.client.Info().Name, err)
	}
	if closing := b.close(); err == nil {
		err = closing
	}
	return err
}
