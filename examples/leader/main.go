//go:build unix

// Command leader shows an elected leader and the ways in which its term can
// end. One of three nodes leads and writes the plan. The other nodes observe
// the leader, and all nodes show it live on a web page. The program ends the
// leader in three ways and prints the time until the next node leads.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	_ "github.com/go-dsync/dsync/drivers/etcd"
	"github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/pglock"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	_ "github.com/go-dsync/dsync/drivers/zk"
	"github.com/go-dsync/dsync/examples/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program immediately
	if os.Getenv(nodeVariable) != "" {
		os.Exit(nodeMain(ctx, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the values of the flags.
type options struct {
	url      string
	etcd     bool
	ttl      time.Duration
	keep     bool
	patience time.Duration
}

// run is the program, with its environment as parameters. It returns the exit
// status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("leader", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.url, "url", "", "the backend of nodes that are processes; without it the nodes are clients in this process")
	flags.BoolVar(&o.etcd, "etcd", false, "the nodes are processes, on an etcd that runs as long as the program")
	flags.DurationVar(&o.ttl, "ttl", 2*time.Second, "the time after which a silent leader is replaced")
	flags.BoolVar(&o.keep, "keep", false, "keep running at the end, until Ctrl-C, to show the pages")
	flags.DurationVar(&o.patience, "patience", time.Minute, "how long to wait for all leaders, in total")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2 // Parse has printed the error
	}
	if flags.NArg() > 0 || o.etcd && o.url != "" || o.patience <= 0 {
		fmt.Fprintln(stderr, "leader: give at most one of -url and -etcd, a positive -patience, and no arguments")
		return 2
	}
	if err := o.show(ctx, stdout); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted: %w", err)
		}
		fmt.Fprintln(stderr, "leader:", err)
		return 1
	}
	return 0
}

// show creates the resources of the demonstration and runs it.
func (o *options) show(ctx context.Context, stdout io.Writer) (err error) {
	if o.etcd {
		dir, err := os.MkdirTemp("", "leader-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		server, err := servers.Etcd(ctx, dir)
		if err != nil {
			return err
		}
		defer server.Stop()
		o.url = "etcd://" + server.Addr + "/locks/"
	}
	storeURL, closeStore, err := serve(new(store))
	if err != nil {
		return err
	}
	defer closeStore()
	limited, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	d := newDemo(o.team(storeURL), stdout)
	defer func() { err = errors.Join(err, d.close()) }()
	if err = d.run(limited); err == nil && o.keep {
		fmt.Fprintln(stdout, "The pages stay until Ctrl-C.")
		_ = d.await(ctx, func() bool { return false })
	}
	return err
}

// team returns the team of nodes. If the user names a backend, the name of the
// election is different in each run.
func (o *options) team(store string) team {
	j := job{o.url, o.ttl, "planner-" + rand.Text()[:6], store}
	if o.url != "" {
		return &processes{j}
	}
	return &embedded{j, memory.NewServer(nil)}
}

// serve listens on an address of this machine. stop returns when the server has
// ended.
func serve(h http.Handler) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ended by Close
	return "http://" + listener.Addr().String() + "/", func() {
		server.Close() // not Shutdown, which would wait for the streams of pages
		serving.Wait()
	}, nil
}
