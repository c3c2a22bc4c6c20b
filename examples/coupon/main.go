// Command coupon shows the purpose of a distributed lock. A shop has 50
// coupons, and 100 buyers arrive at the same time. Each purchase reads the
// number of coupons left, takes a moment, and writes that number minus one. The
// shop opens twice, first without a lock and then with one. Only with the lock
// does it issue exactly as many coupons as it had.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/examples/coupon/shop"
)

// lockName is the name of the lock.
const lockName = "coupons"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program immediately
	if os.Getenv(childVariable) != "" {
		os.Exit(child(ctx, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the values of the flags.
type options struct {
	URL                    string
	Connect, Moment        time.Duration
	Buyers, Coupons, Procs int
}

// usageError is a mistake in the arguments of the program.
type usageError struct{ error }

// run is the program, with its environment as parameters. It returns the exit
// status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("coupon", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.URL, "url", "memory://", "the backend that keeps the lock")
	flags.DurationVar(&o.Connect, "connect", 5*time.Second, "how long to try to connect to it")
	flags.DurationVar(&o.Moment, "moment", 5*time.Millisecond, "how long a purchase takes")
	flags.IntVar(&o.Buyers, "buyers", 100, "how many buyers arrive together")
	flags.IntVar(&o.Coupons, "coupons", 50, "how many coupons there are")
	flags.IntVar(&o.Procs, "procs", 1, "in how many processes the buyers run; 1 means only this one")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2 // Parse has printed the error
	}
	err := o.check(flags.Args())
	if err == nil {
		err = o.withClient(ctx, func(client *dsync.Client) error { return o.openTwice(ctx, client, stdout, stderr) })
	}
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		err = fmt.Errorf("interrupted: %w", err)
	}
	fmt.Fprintln(stderr, "coupon:", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

func (o *options) check(args []string) error {
	switch {
	case len(args) > 0:
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	case o.Buyers < 1 || o.Coupons < 0 || o.Moment < 0 || o.Connect <= 0:
		return usageError{errors.New("-buyers and -connect must be positive, -coupons and -moment not negative")}
	case o.Procs < 1 || o.Procs > o.Buyers:
		return usageError{errors.New("-procs must be between 1 and the number of buyers")}
	}
	return nil
}

// withClient calls fn with a client of the backend.
func (o *options) withClient(ctx context.Context, fn func(*dsync.Client) error) error {
	opening, cancel := context.WithTimeout(ctx, o.Connect)
	defer cancel()
	client, err := dsync.Open(opening, o.URL, nil)
	switch {
	case opening.Err() != nil, errors.Is(err, dsync.ErrUnavailable), errors.Is(err, dsync.ErrUnknown):
		return err
	case err != nil:
		return usageError{err} // the URL is wrong
	}
	err = fn(client)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Connect)
	defer cancel()
	return errors.Join(err, client.Close(closing))
}

// openTwice opens the shop without the lock and with it, and fails if the
// result with the lock is wrong.
func (o *options) openTwice(ctx context.Context, client *dsync.Client, stdout, stderr io.Writer) error {
	backend := client.Info().Name
	if o.Procs > 1 && backend == "memory" {
		return usageError{errors.New("memory:// is a backend inside one process and cannot lock out other processes: " +
			"with -procs, use another -url, such as redisson://127.0.0.1:6379")}
	}
	without, err := o.open(ctx, "without lock", nil, stderr)
	if err != nil {
		return err
	}
	with, err := o.open(ctx, "with lock", client, stderr)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "buyers: %d, coupons: %d, time of a purchase: %v, processes: %d, backend: %s\n\n",
		o.Buyers, o.Coupons, o.Moment, o.Procs, backend)
	fmt.Fprintf(stdout, "%-14s%8s%9s%11s%10s%14s%9s\n", "run", "issued", "refused", "remaining", "oversold", "lost updates", "time")
	for _, r := range []result{without, with} {
		fmt.Fprintf(stdout, "%-14s%8d%9d%11d%10d%14d%9v\n", r.run, r.Issued, r.Refused, r.Remaining,
			max(0, r.Issued-o.Coupons), r.Issued-(o.Coupons-r.Remaining), r.took.Round(time.Millisecond))
	}
	fmt.Fprintf(stdout, "\nwith lock: %v\n", with.Sale)

	if want := shop.WithLock(o.Buyers, o.Coupons); with.Sale != want {
		return fmt.Errorf("with lock, want %v", want)
	}
	return nil
}

// result is the outcome of the shop in one run.
type result struct {
	run string
	shop.Sale
	took time.Duration
}

// open opens the shop for one run and returns after all buyers have been
// served.
func (o *options) open(ctx context.Context, run string, locker dsync.Locker, stderr io.Writer) (result, error) {
	r := result{run: run}
	file, err := os.CreateTemp("", "coupons-")
	if err != nil {
		return r, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	stock := shop.Stock{File: file}
	if err := stock.Write(o.Coupons); err != nil {
		return r, err
	}
	served, stop := newProgress(stderr, run, o.Buyers)
	defer stop()
	start := time.Now()
	if o.Procs > 1 {
		r.Tally, err = job{*o, file.Name(), locker != nil}.split(ctx, served)
	} else {
		s := &shop.Shop{Stock: stock, Locker: locker, Name: lockName, Moment: o.Moment}
		r.Tally, err = s.Serve(ctx, o.Buyers, served)
	}
	if err != nil {
		return r, err
	}
	r.took = time.Since(start)
	r.Remaining, err = stock.Read()
	return r, err
}
