package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-dsync/dsync/examples/coupon/shop"
)

// staff are the processes that sell.
type staff struct {
	lock          string // its name
	stock, tokens shop.Stock
	moment        time.Duration
	served        chan struct{} // gets a value for each buyer

	mu     sync.Mutex // guards what follows
	tally  shop.Tally
	team   []*worker
	next   int // the seller for the next buyer
	broken chan struct{}
	err    error // the reason why broken is closed
}

// worker is one of these processes.
type worker struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	ended  chan struct{}
	err    error // after ended
}

// newStaff makes the files that the sellers share.
func newStaff(dir, lock string, moment time.Duration) (*staff, error) {
	s := &staff{lock: lock, moment: moment, served: make(chan struct{}, buyers), broken: make(chan struct{})}
	stock, stockErr := os.Create(filepath.Join(dir, "stock"))
	tokens, tokensErr := os.Create(filepath.Join(dir, "tokens"))
	if err := errors.Join(stockErr, tokensErr); err != nil {
		return nil, err
	}
	s.stock, s.tokens = shop.Stock{File: stock}, shop.Stock{File: tokens}
	return s, errors.Join(s.stock.Write(coupons), s.tokens.Write(0))
}

// start starts a seller and returns when it is ready.
func (s *staff) start(ctx context.Context, name, url string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w := &worker{name: name, cmd: exec.Command(self), ended: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), sellerVariable+"=1")
	w.cmd.Stderr = &w.stderr
	stdin, inErr := w.cmd.StdinPipe()
	stdout, outErr := w.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return err
	}
	w.stdin = stdin
	if err := w.cmd.Start(); err != nil {
		return err
	}
	ready := make(chan struct{})
	go s.listen(w, stdout, ready) // ends when the process ends
	_ = json.NewEncoder(stdin).Encode(job{url, s.lock, s.stock.File.Name(), s.tokens.File.Name(), s.moment})
	select {
	case <-ready:
	case <-w.ended:
		return w.err
	case <-ctx.Done():
		return errors.Join(ctx.Err(), w.end())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.team = append(s.team, w)
	return nil
}

// listen counts the buyers that a seller has served.
func (s *staff) listen(w *worker, stdout io.Reader, ready chan<- struct{}) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		switch word := lines.Text(); word {
		case wordReady:
			close(ready)
		case wordSold, wordRefused:
			s.mu.Lock()
			s.tally.Add(word == wordSold)
			s.mu.Unlock()
			s.served <- struct{}{}
		}
	}
	if w.err = w.cmd.Wait(); w.err != nil {
		w.err = fmt.Errorf("%s: %w: %s", w.name, w.err, bytes.TrimSpace(w.stderr.Bytes()))
	}
	close(w.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.team, w) && s.err == nil { // it ended without a request
		s.err = fmt.Errorf("%s has ended too early: %w", w.name, w.err)
		close(s.broken)
	}
}

// end waits until a process has ended. The process has received a request to
// end, or its input ends now.
func (w *worker) end() error {
	w.stdin.Close()
	select {
	case <-w.ended:
	case <-time.After(2 * connectLimit):
		w.cmd.Process.Kill() // an error means that the process has ended
		<-w.ended
	}
	return w.err
}

// close lets sellers serve the buyers inside, and then ends the sellers.
func (s *staff) close(names ...string) error {
	for _, name := range names {
		s.mu.Lock()
		i := slices.IndexFunc(s.team, func(w *worker) bool { return w.name == name })
		w := s.team[i]
		s.team = slices.Delete(s.team, i, i+1)
		s.mu.Unlock()
		fmt.Fprintln(w.stdin, wordClose)
		if err := w.end(); err != nil {
			return err
		}
	}
	return nil
}

// sendHome ends all sellers immediately.
func (s *staff) sendHome() (err error) {
	s.mu.Lock()
	team := s.team
	s.team = nil
	s.mu.Unlock()
	for _, w := range team {
		w.stdin.Close()
	}
	for _, w := range team {
		if endErr := w.end(); endErr != nil && !bytes.Contains(w.stderr.Bytes(), []byte(errOrphan.Error())) {
			err = errors.Join(err, endErr)
		}
	}
	return err
}

func (s *staff) names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.team {
		names = append(names, w.name)
	}
	slices.Sort(names)
	return names
}

func (s *staff) soFar() shop.Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tally
}

// admit sends a buyer to the next seller, if there is one.
func (s *staff) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.team) == 0 {
		return false
	}
	s.next++
	fmt.Fprintln(s.team[s.next%len(s.team)].stdin, wordBuy) // a missing seller is noticed elsewhere
	return true
}

// await returns when the given number of buyers has been served.
func (s *staff) await(ctx context.Context, n int) error {
	for range n {
		select {
		case <-s.served:
		case <-s.broken:
			return s.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// sell serves buyers who arrive together.
func (s *staff) sell(ctx context.Context, n int) error {
	for range n {
		s.admit()
	}
	return s.await(ctx, n)
}

// sellDuring serves buyers one after the other until work returns.
func (s *staff) sellDuring(ctx context.Context, n int, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sold := make(chan error)
	go func() { // ends when ctx ends
		err := s.sellOneByOne(ctx, n)
		if err != nil {
			cancel(err)
		}
		sold <- err
	}()
	err := work(ctx)
	if err != nil {
		cancel(err)
	}
	<-sold
	return context.Cause(ctx)
}

func (s *staff) sellOneByOne(ctx context.Context, n int) error {
	for range n {
		for !s.admit() { // the shop is not open yet
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := s.await(ctx, 1); err != nil {
			return err
		}
	}
	return nil
}
