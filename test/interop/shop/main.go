// Command shop sells coupons to buyers. Half of the buyers are threads of a
// Java program with Redisson's RLock, and half are goroutines with dsync. All
// of them read and write one number in Redis, first without a lock and then
// with it. Only with the lock is the number of issued coupons right. Then
// goroutines read a price list that a Java thread changes, without and with
// Redisson's RReadWriteLock. Shop starts its own Redis server unless -addr
// names one. It uses only keys that begin with shop.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-dsync/dsync"
	_ "github.com/go-dsync/dsync/drivers/redisson"
	"github.com/go-dsync/dsync/test/interop/agent"
)

const (
	buyers  = 100 // half of each kind
	coupons = 50
	stock   = "shop:stock"
	name    = "shop:lock"
	moment  = 5 * time.Millisecond // between reading the number of coupons and writing the new number
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	addr := flag.String("addr", "", "address of a Redis server (host:port); empty starts a server")
	version := flag.String("redisson", agent.Versions(agent.New)[0], "the version of Redisson")
	flag.Parse()
	if err := run(ctx, *addr, *version, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, version string, out io.Writer) error {
	command, err := agent.Command(ctx, version)
	if err != nil {
		return err
	}
	if addr == "" {
		server, err := startRedis(ctx)
		if err != nil {
			return err
		}
		defer server.stop()
		addr = server.addr
	}
	s := &shop{}
	if s.client, err = dsync.Open(ctx, "redisson://"+addr, nil); err != nil {
		return err
	}
	defer s.client.Close(context.Background())
	if s.redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true}); err != nil {
		return err
	}
	defer s.redis.Close()
	if s.java, err = startJava(ctx, command, addr); err != nil {
		return err
	}
	defer s.java.stop()

	if _, err := s.open(ctx, "", out, "without lock"); err != nil {
		return err
	}
	result, err := s.open(ctx, name, out, "with lock")
	if err != nil {
		return err
	}
	if want := (sale{coupons, buyers - coupons, 0}); result != want {
		return fmt.Errorf("with lock: got %+v, want %+v", result, want)
	}

	if _, err := s.showPrices(ctx, "", out, "prices without lock"); err != nil {
		return err
	}
	seen, err := s.showPrices(ctx, pricesName, out, "prices with lock")
	if err == nil && (seen.changes != changes || seen.reads == 0 || seen.torn > 0) {
		err = fmt.Errorf("prices with lock: got %+v, want %d changes and no torn reads", seen, changes)
	}
	return err
}

// shop has the connection to Redis, which stores the stock, and the clients of
// both kinds of buyers.
type shop struct {
	client *dsync.Client
	redis  rueidis.Client
	java   *java
}

// sale is the result of a day: purchases, refusals, and the coupons that seem
// to be left.
type sale struct{ issued, refused, remaining int }

// open lets all buyers in together. If there is no lock name, they use no lock.
func (s *shop) open(ctx context.Context, lock string, out io.Writer, title string) (sale, error) {
	if err := s.redis.Do(ctx, s.redis.B().Set().Key(stock).Value(strconv.Itoa(coupons)).Build()).Error(); err != nil {
		return sale{}, err
	}
	answers := make(chan string, buyers)
	errs := make(chan error, buyers)
	var wg sync.WaitGroup
	for i := range buyers {
		wg.Go(func() {
			buy := s.buy
			if i%2 == 0 {
				buy = s.java.buy
			}
			answer, err := buy(ctx, lock)
			if err != nil {
				errs <- err
				return
			}
			answers <- answer
		})
	}
	wg.Wait()
	close(answers)
	close(errs)
	var failed error
	for err := range errs {
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return sale{}, failed
	}
	result := sale{}
	for answer := range answers {
		if answer == "issued" {
			result.issued++
		} else {
			result.refused++
		}
	}
	left, err := s.redis.Do(ctx, s.redis.B().Get().Key(stock).Build()).AsInt64()
	result.remaining = int(left)
	if err == nil {
		fmt.Fprintf(out, "%s: issued=%d refused=%d remaining=%d\n", title, result.issued, result.refused, result.remaining)
	}
	return result, err
}

// buy makes a goroutine buy a coupon.
func (s *shop) buy(ctx context.Context, lock string) (answer string, err error) {
	if lock != "" {
		lease, err := s.client.Lock(ctx, lock)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	}
	left, err := s.redis.Do(ctx, s.redis.B().Get().Key(stock).Build()).AsInt64()
	if err != nil {
		return "", err
	}
	time.Sleep(moment)
	if left <= 0 {
		return "refused", nil
	}
	return "issued", s.redis.Do(ctx, s.redis.B().Set().Key(stock).Value(strconv.FormatInt(left-1, 10)).Build()).Error()
}
