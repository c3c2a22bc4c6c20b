package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/drivers/memory"
)

// What does a job do when it loses its lock? In a bubble of testing/synctest
// this takes no time, even with a TTL of 30 s.
func ExampleDriver_Cut() {
	ctx := context.Background()
	backend := memory.New(nil)
	client, err := dsync.New(backend, &dsync.Options{TTL: 100 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	err = dsync.Do(ctx, client, "report", func(ctx context.Context) error {
		backend.Cut()
		<-ctx.Done() // the job stops
		return ctx.Err()
	})
	fmt.Println("lost:", errors.Is(err, dsync.ErrLost))
	// Output: lost: true
}

// Two clients of one backend, as two processes have them.
func ExampleServer() {
	ctx := context.Background()
	server := memory.NewServer(nil)
	var clients []*dsync.Client
	for range 2 {
		client, err := dsync.New(server.NewDriver(), nil)
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close(ctx)
		clients = append(clients, client)
	}

	lease, err := clients[0].Lock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	_, err = clients[1].TryLock(ctx, "report")
	fmt.Println("locked:", errors.Is(err, dsync.ErrLocked))

	if err := clients[1].ForceUnlock(ctx, "report"); err != nil {
		log.Fatal(err)
	}
	<-lease.Done()
	fmt.Println("lost:", errors.Is(lease.Err(), dsync.ErrLost))
	// Output:
	// locked: true
	// lost: true
}
