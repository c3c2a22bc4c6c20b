package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/go-dsync/dsync"
)

// lockName is the name of the lock: all who change the stock have to use the same.
const lockName = "coupons"

// shop sells coupons to buyers who come at once.
type shop struct {
	stock  stock
	locker dsync.Locker  // nil stands for no lock
	moment time.Duration // how long a purchase takes
}

// buy is one purchase, under the lock if there is one.
func (s *shop) buy(ctx context.Context) (sold bool, err error) {
	if s.locker == nil {
		return s.sell(ctx)
	}
	err = dsync.Do(ctx, s.locker, lockName, func(ctx context.Context) (err error) {
		sold, err = s.sell(ctx)
		return err
	})
	return sold, err
}

// sell reads the stock, takes its moment, and writes the stock. Under the lock ctx is that of the lease: when it ends, somebody else
// may be selling, and what was read is out of date.
func (s *shop) sell(ctx context.Context) (sold bool, err error) {
	left, err := s.stock.read()
	if err != nil || left == 0 {
		return false, err
	}
	select {
	case <-time.After(s.moment):
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return true, s.stock.write(left - 1)
}

// serve lets the buyers in, all at once, and returns how they fared. After each of them it calls served with the count so far. The
// first error sends the others home.
func (s *shop) serve(ctx context.Context, buyers int, served func(tally)) (tally, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	door, sales := make(chan struct{}), make(chan bool)
	for range buyers {
		go func() { // ends with its purchase
			<-door
			sold, err := s.buy(ctx)
			if err != nil {
				cancel(err)
			}
			sales <- sold
		}()
	}
	close(door)
	var t tally
	for range buyers {
		if sold := <-sales; sold {
			t.issued++
		} else {
			t.refused++
		}
		served(t)
	}
	return t, context.Cause(ctx)
}

// tally is how many buyers got a coupon, and how many came too late.
type tally struct{ issued, refused int }

const tallyFormat = "issued=%d refused=%d"

func (t tally) String() string { return fmt.Sprintf(tallyFormat, t.issued, t.refused) }

// stock is how many coupons are left: eight bytes in a file, in place of a row in a database. A read and a write are atomic, each for
// itself. Nothing but the lock holds the two of a purchase together.
type stock struct{ file *os.File }

func (s stock) read() (int, error) {
	var b [8]byte
	_, err := s.file.ReadAt(b[:], 0)
	return int(binary.BigEndian.Uint64(b[:])), err
}

func (s stock) write(left int) error {
	_, err := s.file.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(left)), 0)
	return err
}
