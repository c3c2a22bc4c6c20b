// Command tutorial is the program of docs/tutorial.md: workers that add to a
// counter under a lock, and the service that keeps the counter.
//
//	tutorial counter    # the service, on localhost:8042
//	tutorial            # a worker; LOCKS is the URL of the backend
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/memory"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/guard"
)

// address is the address of the service.
var address = cmp.Or(os.Getenv("COUNTER"), "localhost:8042")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := work
	if len(os.Args) == 2 && os.Args[1] == "counter" {
		run = count
	}
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// work adds to the counter until ctx is done.
func work(ctx context.Context) error {
	client, err := dsync.Open(ctx, os.Getenv("LOCKS"), nil)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	for ctx.Err() == nil {
		err := dsync.Do(ctx, client, "counter", func(ctx context.Context) error {
			token := dsync.LeaseFrom(ctx).Token()
			log.Printf("acquired, token %d", token)
			time.Sleep(3 * time.Second)
			return add(token)
		})
		if err != nil {
			log.Print(err)
		}
	}
	return nil
}

// add sends a write. Like many programs, it does so without a context that
// could end it.
func add(token uint64) error {
	r, err := http.NewRequest(http.MethodPost, "http://"+address+"/counter", nil)
	if err != nil {
		return err
	}
	guard.SetToken(r, token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the counter refused token %d: %s", token, answer.Status)
	}
	return nil
}

// count runs the service until ctx is done.
func count(ctx context.Context) error {
	server := &http.Server{Addr: address, Handler: counter()}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// counter returns a service that adds 1 with each request, and refuses a write
// with an old token.
func counter() http.Handler {
	var tokens guard.Memory
	var n atomic.Int64
	add := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { log.Printf("counter %d", n.Add(1)) })
	return guard.Handler(add, func(_ *http.Request, token uint64) error { return tokens.Write("counter", token) })
}
