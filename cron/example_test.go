package cron_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cron"
	_ "github.com/go-dsync/dsync/drivers/memory"
)

// Every instance of a service makes the same call, and one of them runs report
// in each hour.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	client, err := dsync.Open(ctx, "memory://", nil) // or "redisson://host:6379"
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	report := func(ctx context.Context, at time.Time) error { return nil }

	job := &cron.Job{Locker: client, Name: "report", Every: time.Hour, Run: report,
		Report: func(r cron.Result) { log.Printf("%v: %v %v", r.At, r.Outcome, r.Err) }}
	err = job.Loop(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		log.Fatal(err)
	}
	// Output:
}
