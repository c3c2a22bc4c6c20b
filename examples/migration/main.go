// Command migration moves the lock of a shop from Redis to etcd while the shop
// sells. Four processes sell: three that take part in the migration, and one
// that uses only Redis. The program is their operator. It restarts them with
// other URLs, one after the other, and calls `dsync migrate` in between,
// following the runbook in docs/migration.md.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	_ "github.com/go-dsync/dsync/drivers/etcd"
	_ "github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/migrate"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/zk"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program immediately
	if os.Getenv(sellerVariable) != "" {
		os.Exit(sellerMain(ctx, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the values of the flags.
type options struct {
	from, to string
	command  string
	moment   time.Duration
	patience time.Duration
}

// run is the program, with its environment as parameters. It returns the exit
// status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("migration", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.from, "from", "", "the old backend; without it and -to, a redis-server and an etcd run as long as the program")
	flags.StringVar(&o.to, "to", "", "the new backend")
	flags.StringVar(&o.command, "dsync", "", "the command dsync; by default it is built from this module")
	flags.DurationVar(&o.moment, "moment", 20*time.Millisecond, "how long a purchase takes")
	flags.DurationVar(&o.patience, "patience", 30*time.Second, "how long to repeat a command until it reports the expected result")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2 // Parse has printed the error
	}
	if flags.NArg() > 0 || (o.from == "") != (o.to == "") || o.moment < 0 || o.patience <= 0 {
		fmt.Fprintln(stderr, "migration: give both or neither of -from and -to, a positive -patience, a -moment that is not negative, "+
			"and no arguments")
		return 2
	}
	err := o.migrate(ctx, stdout)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		err = fmt.Errorf("interrupted: %w", err)
	}
	fmt.Fprintln(stderr, "migration:", err)
	return 1
}

// migrate creates the resources of the runbook and follows it.
func (o *options) migrate(ctx context.Context, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "migration-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// On given backends, the names must be different each time, because a name
	// can move only once. The shop uses the first name.
	id := rand.Text()[:6]
	names := []string{"coupons-" + id, "stock-take-" + id, "returns-" + id}
	r := &runbook{from: o.from, to: o.to, patience: o.patience, out: stdout, names: filepath.Join(dir, "names.txt")}
	if err := os.WriteFile(r.names, []byte(strings.Join(names, "\n")), 0o600); err != nil {
		return err
	}
	if r.from == "" {
		own, err := startServers(ctx, dir)
		if err != nil {
			return err
		}
		defer own.stop()
		r.from, r.to, r.stopOld = own.redisURL(), own.etcdURL(), own.redis.Stop
	}
	if r.tool, err = newTool(ctx, dir, o.command, r.from, r.to); err != nil {
		return err
	}
	if r.staff, err = newStaff(dir, names[0], o.moment); err != nil {
		return err
	}
	defer r.staff.stock.File.Close()
	sale, err := r.run(ctx)
	if err != nil {
		return errors.Join(err, r.staff.sendHome())
	}
	fmt.Fprintf(stdout, "\nwith lock: %v\n", sale)
	if sale != wanted {
		return fmt.Errorf("with lock, want %v", wanted)
	}
	return nil
}
