// Command observability runs a shop whose buyers arrive at the same time and
// take turns under a lock. Its spans and metrics show which purchase was slow,
// the time that it waited for the lock, and which other purchase held the lock
// in the meantime. They are sent to an OpenTelemetry collector, or are printed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/redlock"
	_ "github.com/go-dsync/dsync/drivers/zk"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program immediately
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the values of the flags.
type options struct {
	url                string
	buyers, coupons    int
	moment, slowMoment time.Duration
}

// run is the program, with its environment as parameters. It returns the exit
// status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("observability", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.url, "url", "memory://", "the backend that keeps the lock")
	flags.IntVar(&o.buyers, "buyers", 8, "how many buyers arrive together")
	flags.IntVar(&o.coupons, "coupons", 5, "how many coupons there are")
	flags.DurationVar(&o.moment, "moment", 5*time.Millisecond, "how long a purchase takes")
	flags.DurationVar(&o.slowMoment, "slow", 50*time.Millisecond, "how long the purchase of the first buyer takes")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2 // Parse has printed the error
	}
	if flags.NArg() > 0 || o.buyers < 1 || o.coupons < 0 || o.moment < 0 || o.slowMoment < 0 {
		fmt.Fprintln(stderr, "observability: -buyers must be positive, the other numbers must not be negative, and there are no arguments")
		return 2
	}
	if err := o.observed(ctx, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "observability:", err)
		return 1
	}
	return 0
}

// observed opens the shop and exports its spans and metrics.
func (o *options) observed(ctx context.Context, stdout, stderr io.Writer) error {
	export, err := newExport(ctx, stdout)
	if err != nil {
		return err
	}
	otel.SetTracerProvider(export.spans)
	otel.SetMeterProvider(export.points)

	err = o.open(ctx, stdout, stderr)

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, export.shutdown(ctx))
}

// open opens the shop until all buyers have arrived.
func (o *options) open(ctx context.Context, stdout, stderr io.Writer) error {
	opening, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := dsync.Open(opening, o.url, &dsync.Options{
		Class:  func(name string) string { class, _, _ := strings.Cut(name, "/"); return class },
		Logger: slog.New(slog.NewTextHandler(stderr, nil)),
	})
	if err != nil {
		return err
	}
	s := &shop{locker: client, left: o.coupons, moment: o.moment, slowMoment: o.slowMoment}
	sold, err := s.serve(ctx, o.buyers)
	fmt.Fprintf(stdout, "buyers: %d, coupons sold: %d, left: %d\n", o.buyers, sold, s.left)

	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(err, client.Close(closing))
}
