package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/memory"
)

func Example() {
	ctx := context.Background()
	client, err := dsync.Open(ctx, "memory://", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	lease, err := client.Lock(ctx, "orders/42")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)
	fmt.Println("locked", lease.Name())
	// Output: locked orders/42
}

func ExampleDo() {
	ctx := context.Background()
	client, err := dsync.Open(ctx, "memory://", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)

	err = dsync.Do(ctx, client, "orders/42", func(ctx context.Context) error {
		// ctx ends when the lock is lost.
		fmt.Println("nobody else is here")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// nobody else is here
	// <nil>
}

func ExampleTryDo() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	err := dsync.TryDo(ctx, client, "report", func(ctx context.Context) error {
		lease := dsync.LeaseFrom(ctx)
		fmt.Println(lease.Name(), lease.Token()) // the token goes with every write
		return nil
	})
	if errors.Is(err, dsync.ErrLocked) {
		fmt.Println("somebody else makes the report")
	}
	// Output: report 1
}

func ExampleClient_TryLock() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	first, _ := client.TryLock(ctx, "orders/42")
	_, err := client.TryLock(ctx, "orders/42")
	fmt.Println(errors.Is(err, dsync.ErrLocked), err)
	_ = first.Unlock(ctx)
	// Output: true dsync: lock "orders/42": locked by another owner
}

func ExampleClient_NewOwner() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	owner := client.NewOwner()
	outer, _ := owner.Lock(ctx, "orders/42")
	inner, _ := owner.Lock(ctx, "orders/42") // re-enters: no wait, no request
	fmt.Println(outer.Token() == inner.Token())
	_ = inner.Unlock(ctx)

	_, err := client.TryLock(ctx, "orders/42")
	fmt.Println("after the first Unlock:", errors.Is(err, dsync.ErrLocked))
	_ = outer.Unlock(ctx)

	_, err = client.TryLock(ctx, "orders/42")
	fmt.Println("after the second:", err)
	// Output:
	// true
	// after the first Unlock: true
	// after the second: <nil>
}

func ExampleOpen_require() {
	ctx := context.Background()
	client, err := dsync.Open(ctx, "memory://", &dsync.Options{Require: dsync.Require{Fair: true, Fenced: true}})
	if err != nil {
		fmt.Println(err) // and not in the middle of the night
		return
	}
	defer client.Close(ctx)
	info := client.Info()
	fmt.Println(info.Order == dsync.FIFO, info.Fencing == dsync.VolatileTokens)
	// Output: true true
}

func ExampleMaxHold() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	err := dsync.Do(ctx, client, "report", func(ctx context.Context) error {
		<-ctx.Done() // the job hangs
		return ctx.Err()
	}, dsync.MaxHold(20*time.Millisecond))
	fmt.Println(errors.Is(err, dsync.ErrLost), err)
	// Output: true context canceled; dsync: unlock "report": lock lost: held for longer than MaxHold
}

func ExampleExpireAfter() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	lease, _ := client.Lock(ctx, "report", dsync.ExpireAfter(100*time.Millisecond))
	<-lease.Done()
	fmt.Println(errors.Is(lease.Err(), dsync.ErrLost), lease.Err())
	// Output: true dsync: lease "report": lock lost: expired
}

func ExampleWith() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	readers, writers := dsync.With(client, dsync.Read()), dsync.With(client, dsync.Write())
	err := dsync.Do(ctx, readers, "prices", func(ctx context.Context) error {
		err := dsync.TryDo(context.Background(), readers, "prices", func(context.Context) error {
			fmt.Println("two read")
			return nil
		})
		if _, busy := writers.TryLock(context.Background(), "prices"); errors.Is(busy, dsync.ErrLocked) {
			fmt.Println("nobody writes")
		}
		if _, upgrade := writers.Lock(ctx, "prices"); errors.Is(upgrade, dsync.ErrDeadlock) {
			fmt.Println("there is no upgrade")
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// two read
	// nobody writes
	// there is no upgrade
	// <nil>
}

// A Write closes a gate. Clients that want to pass wait for a Read.
func ExamplePermits() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)
	tenant, call := "42", func(context.Context) error {
		fmt.Println("called")
		return nil
	}

	// At most ten calls of a tenant at a time.
	err := dsync.Do(ctx, dsync.With(client, dsync.Permits(1, 10)), "api/"+tenant, call)
	fmt.Println(err)
	// Output:
	// called
	// <nil>
}

func ExampleRead_gate() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	closed, _ := client.Lock(ctx, "gate", dsync.Write())
	var passed sync.WaitGroup
	for range 3 {
		passed.Go(func() {
			if lease, err := client.Lock(ctx, "gate", dsync.Read()); err == nil {
				_ = lease.Unlock(ctx)
			}
		})
	}
	fmt.Println("opened:", closed.Unlock(ctx))
	passed.Wait()
	fmt.Println("all have passed")
	// Output:
	// opened: <nil>
	// all have passed
}

// One of the replicas plans the jobs. Each term has a number, which the leader
// sends with its writes.
func ExampleElect() {
	ctx := context.Background()
	client, err := dsync.Open(ctx, "memory://", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	err = dsync.Elect(ctx, client, "planner", func(ctx context.Context, term *dsync.Lease) error {
		fmt.Println("leader in term", term.Token())
		return nil // a real leader works until ctx ends; to return is to resign
	})
	fmt.Println(err)
	// Output:
	// leader in term 1
	// <nil>
}

// Many clients read while few of them change the data.
func ExampleRead() {
	ctx := context.Background()
	client, e := dsync.Open(ctx, "memory://", nil)
	if e != nil {
		log.Fatal(e)
	}
	defer client.Close(ctx)
	show := func(context.Context) error { fmt.Println("shown"); return nil }
	update := func(context.Context) error { fmt.Println("updated"); return nil }

	readers, writers := dsync.With(client, dsync.Read()), dsync.With(client, dsync.Write())
	err := errors.Join(
		dsync.Do(ctx, readers, "prices", show),   // together with all other readers
		dsync.Do(ctx, writers, "prices", update)) // alone

	fmt.Println(err)
	// Output:
	// shown
	// updated
	// <nil>
}

// The other replicas know which one is the leader.
func ExampleClient_Observe() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := dsync.Open(ctx, "memory://", &dsync.Options{Note: "10.0.0.7:8080"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	if _, err := client.Lock(ctx, "planner"); err != nil {
		log.Fatal(err)
	}
	for status, err := range client.Observe(ctx, "planner") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("the planner is at", status.Note)
		break
	}
	// Output: the planner is at 10.0.0.7:8080
}

// A batch is done when all its parts are done, in whichever process they run.
func ExampleClient_Latch() {
	ctx := context.Background()
	client, _ := dsync.Open(ctx, "memory://", nil)
	defer client.Close(ctx)

	parts := client.Latch("batch/2026-11-23")
	if _, err := parts.Set(ctx, 3); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		go func() { // usually in other processes
			// ... a part of the work ...
			if err := parts.CountDown(ctx); err != nil {
				log.Print(err)
			}
		}()
	}
	fmt.Println("done:", parts.Wait(ctx) == nil)
	// Output: done: true
}

// An order is charged under a lock, and the caller must not charge it again.
func ExampleRan() {
	client, err := dsync.Open(context.Background(), "memory://", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	charge := func(context.Context) error { return nil }
	fmt.Println(chargeOnce(context.Background(), client, "42", charge))
	// Output: <nil>
}

var errTryAgain = errors.New("try again")

func chargeOnce(ctx context.Context, l dsync.Locker, id string, charge func(context.Context) error) error {
	ran, failed := dsync.Ran(dsync.Do(ctx, l, "orders/"+id, charge))
	switch {
	case !ran:
		return errTryAgain // nothing was charged
	case failed != nil:
		return failed
	}
	return nil // it was charged, even if the release of the lock is unconfirmed
}
