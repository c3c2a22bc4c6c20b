// Package shop is a shop that sells coupons under a lock. The programs coupon
// and migration share it.
package shop

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/go-dsync/dsync"
)

// Shop sells coupons to buyers who arrive at the same time.
type Shop struct {
	Stock  Stock
	Locker dsync.Locker  // nil means no lock
	Name   string        // of the lock: every seller that changes the stock must use the same name
	Moment time.Duration // duration of a purchase
}

// Buy makes one purchase, under the lock if there is one. Sold is false if no
// coupon was left.
func (s *Shop) Buy(ctx context.Context) (sold bool, err error) {
	if s.Locker == nil {
		return s.sell(ctx)
	}
	err = dsync.Do(ctx, s.Locker, s.Name, func(ctx context.Context) (err error) {
		sold, err = s.sell(ctx)
		return err
	})
	return sold, err
}

// sell reads the stock, waits a moment, and writes the stock. Under the lock,
// ctx is the context of the lease. When ctx ends, another seller may be active,
// and the number that was read may be out of date.
func (s *Shop) sell(ctx context.Context) (sold bool, err error) {
	left, err := s.Stock.Read()
	if err != nil || left == 0 {
		return false, err
	}
	select {
	case <-time.After(s.Moment):
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return true, s.Stock.Write(left - 1)
}

// Serve lets all buyers in together and returns the result. After each buyer it
// calls served with the count so far. The first error ends the other purchases.
func (s *Shop) Serve(ctx context.Context, buyers int, served func(Tally)) (Tally, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	door, sales := make(chan struct{}), make(chan bool)
	for range buyers {
		go func() { // ends when its purchase ends
			<-door
			sold, err := s.Buy(ctx)
			if err != nil {
				cancel(err)
			}
			sales <- sold
		}()
	}
	close(door)
	var t Tally
	for range buyers {
		t.Add(<-sales)
		served(t)
	}
	return t, context.Cause(ctx)
}

// Tally counts the buyers who got a coupon and the buyers who came too late.
type Tally struct{ Issued, Refused int }

const tallyFormat = "issued=%d refused=%d"

// Add counts a buyer.
func (t *Tally) Add(sold bool) {
	if sold {
		t.Issued++
	} else {
		t.Refused++
	}
}

func (t Tally) String() string { return fmt.Sprintf(tallyFormat, t.Issued, t.Refused) }

// ParseTally parses the output of String.
func ParseTally(text string) (t Tally, err error) {
	_, err = fmt.Sscanf(text, tallyFormat, &t.Issued, &t.Refused)
	return t, err
}

// Sale is the outcome for all buyers and for the stock.
type Sale struct {
	Tally
	Remaining int
}

// WithLock is the expected outcome for buyers and coupons if the lock works.
func WithLock(buyers, coupons int) Sale {
	sold := min(buyers, coupons)
	return Sale{Tally{sold, buyers - sold}, coupons - sold}
}

func (s Sale) String() string { return fmt.Sprintf("%v remaining=%d", s.Tally, s.Remaining) }

// Stock is the number of coupons left: eight bytes in a file that stands for a
// row in a database. A read is atomic, and so is a write, but only the lock
// makes the read and the write of a purchase atomic together.
type Stock struct{ File *os.File }

// Read returns the number of coupons left.
func (s Stock) Read() (int, error) {
	var b [8]byte
	_, err := s.File.ReadAt(b[:], 0)
	return int(binary.BigEndian.Uint64(b[:])), err
}

// Write sets the number of coupons left.
func (s Stock) Write(left int) error {
	_, err := s.File.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(left)), 0)
	return err
}
