package redisson_test

import (
	"context"
	"log"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/redisson"
)

func Example() {
	ctx := context.Background()
	client, err := dsync.Open(ctx, "redisson://redis:6379", nil) // beside redisson.getLock(name)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
}

func Example_fair() {
	ctx := context.Background()
	client, err := dsync.Open(ctx, "redisson://redis:6379?fair=true", nil) // beside redisson.getFairLock(name)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
}
