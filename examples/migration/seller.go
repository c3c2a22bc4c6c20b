package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/examples/coupon/shop"
)

// sellerVariable in the environment marks a process that is a seller.
const sellerVariable = "MIGRATION_SELLER"

// connectLimit bounds a seller's attempts to connect to its backends and to
// leave them.
const connectLimit = 10 * time.Second

var errOrphan = errors.New("the seller's parent process is gone")

// A seller reads its job and then words from its standard input. It reports on
// its standard output when it is ready, and then the result for each buyer.
// When the input ends, the seller must end, too.
const (
	wordBuy     = "buy"     // a buyer comes in
	wordClose   = "close"   // serve the buyers inside, then end
	wordReady   = "ready"   // the shop is open
	wordSold    = "sold"    // a buyer got a coupon
	wordRefused = "refused" // a buyer came too late
)

// job is the configuration of a seller.
type job struct {
	URL, Lock     string
	Stock, Tokens string // files
	Moment        time.Duration
}

// sellerMain is the main function of a seller.
func sellerMain(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (status int) {
	signal.Ignore(syscall.SIGPIPE) // the end of the parent is noticed at stdin, with time to release the lock
	if err := doJob(ctx, bufio.NewScanner(stdin), stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func doJob(ctx context.Context, in *bufio.Scanner, out io.Writer) error {
	var j job
	if !in.Scan() {
		return errOrphan
	}
	if err := json.Unmarshal(in.Bytes(), &j); err != nil {
		return err
	}
	stock, stockErr := os.OpenFile(j.Stock, os.O_RDWR, 0)
	tokens, tokensErr := os.OpenFile(j.Tokens, os.O_RDWR, 0)
	if err := errors.Join(stockErr, tokensErr); err != nil {
		return err
	}
	defer stock.Close()
	defer tokens.Close()
	opening, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	client, err := dsync.Open(opening, j.URL, nil)
	if err != nil {
		return err
	}
	s := &seller{
		shop:   &shop.Shop{Stock: shop.Stock{File: stock}, Locker: client, Name: j.Lock, Moment: j.Moment},
		tokens: shop.Stock{File: tokens},
		out:    out,
	}
	fmt.Fprintln(out, wordReady)
	err = s.serve(ctx, in)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectLimit)
	defer cancel()
	return errors.Join(err, client.Close(closing))
}

// seller sells to arriving buyers, and continuously audits the stock.
type seller struct {
	shop   *shop.Shop
	tokens shop.Stock // the last fencing token

	mu  sync.Mutex // guards what follows
	out io.Writer
}

func (s *seller) say(word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.out, word)
}

// serve lets buyers in until it gets the word to close. The first error ends
// all purchases.
func (s *seller) serve(ctx context.Context, in *bufio.Scanner) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	auditing, stop := context.WithCancel(ctx)
	defer stop()
	var inside, auditor sync.WaitGroup
	auditor.Go(func() { // ends with auditing
		if err := s.auditAll(auditing); err != nil {
			cancel(err)
		}
	})
	closed := make(chan struct{})
	go func() { // ends with the input or this process
		defer close(closed)
		for in.Scan() && in.Text() != wordClose {
			inside.Go(func() {
				if err := s.sell(ctx); err != nil {
					cancel(err)
				}
			})
		}
		if in.Text() != wordClose {
			cancel(errOrphan)
		}
	}()
	select {
	case <-closed:
		inside.Wait()
	case <-ctx.Done():
	}
	stop()
	auditor.Wait()
	return context.Cause(ctx)
}

func (s *seller) sell(ctx context.Context) error {
	sold, err := s.shop.Buy(ctx)
	switch {
	case err != nil:
		return err
	case sold:
		s.say(wordSold)
	default:
		s.say(wordRefused)
	}
	return nil
}

// auditAll audits the stock repeatedly until ctx ends.
func (s *seller) auditAll(ctx context.Context) error {
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		if err := s.audit(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// audit detects whether another client also holds the lock, or held it with a
// later token. It counts the stock twice under the lock, and compares the
// tokens of the leases.
func (s *seller) audit(ctx context.Context) (err error) {
	lease, err := s.shop.Locker.Lock(ctx, s.shop.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	ctx, cancel := lease.Context(ctx)
	defer cancel()
	before, err := s.shop.Stock.Read()
	if err != nil {
		return err
	}
	last, err := s.tokens.Read()
	if err != nil {
		return err
	}
	if token := int(lease.Token()); token <= last {
		return fmt.Errorf("audit: got token %d after %d", token, last)
	} else if err := s.tokens.Write(token); err != nil {
		return err
	}
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	after, err := s.shop.Stock.Read()
	if err == nil && after != before && lease.Err() == nil {
		err = fmt.Errorf("audit: the stock went from %d to %d while the lock was held", before, after)
	}
	return err
}
