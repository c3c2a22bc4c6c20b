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
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/examples/coupon/shop"
)

// childVariable in the environment marks a child process with a job.
const childVariable = "COUPON_CHILD"

var errOrphan = errors.New("the process that assigned the job is gone")

// job is the work of a child process, which serves some of the buyers. The
// child reads the job from its standard input, and then the word to start. When
// the input ends, the child must end, too. It reports on its standard output
// when it is ready and, after each buyer, the count so far.
type job struct {
	options
	Stock  string // the file
	Locked bool
}

// split divides the job among several processes, which start to sell together,
// and adds up their counts. The first error ends all of them.
func (j job) split(ctx context.Context, served func(shop.Tally)) (shop.Tally, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var ready atomic.Int64
	start, counts := make(chan struct{}), make(chan shop.Tally)
	meet := func() {
		if ready.Add(1) == int64(j.Procs) {
			close(start)
		}
		select {
		case <-start:
		case <-ctx.Done():
		}
	}
	for i := range j.Procs {
		part := j
		part.Buyers = (j.Buyers + i) / j.Procs // the parts add up to the whole
		go func() {                            // ends when its process ends
			t, err := part.delegate(ctx, meet, served)
			if err != nil {
				cancel(fmt.Errorf("process %d: %w", i+1, err))
			}
			counts <- t
		}()
	}
	var total shop.Tally
	for range j.Procs {
		t := <-counts
		total.Issued += t.Issued
		total.Refused += t.Refused
	}
	return total, context.Cause(ctx)
}

// delegate runs the job in one process, which is this program again. It calls
// meet when the process is ready to start.
func (j job) delegate(ctx context.Context, meet func(), served func(shop.Tally)) (t shop.Tally, err error) {
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return t, err
	}
	cmd.Cancel = stdin.Close                   // the child releases the lock and ends by itself,
	cmd.WaitDelay = j.Connect + 10*time.Second // or is killed
	if err := cmd.Start(); err != nil {
		return t, err
	}
	lines := bufio.NewScanner(stdout)
	_ = json.NewEncoder(stdin).Encode(j) // if the child is gone, Wait returns the reason
	if lines.Scan() {
		meet()
		fmt.Fprintln(stdin, "start")
	}
	for lines.Scan() {
		t, _ = shop.ParseTally(lines.Text()) // missing input is noticed at the end
		served(t)
	}
	if err := cmd.Wait(); err != nil {
		if text := bytes.TrimSpace(stderr.Bytes()); len(text) > 0 {
			err = errors.New(string(text))
		}
		return t, err
	}
	if n := t.Issued + t.Refused; n != j.Buyers {
		return t, fmt.Errorf("the process reported %d of %d buyers", n, j.Buyers)
	}
	return t, nil
}

// child is the main function of a process with a job.
func child(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (status int) {
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
	file, err := os.OpenFile(j.Stock, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return j.withClient(ctx, func(client *dsync.Client) error {
		s := &shop.Shop{Stock: shop.Stock{File: file}, Name: lockName, Moment: j.Moment}
		if j.Locked {
			s.Locker = client
		}
		fmt.Fprintln(out, "ready")
		if !in.Scan() {
			return errOrphan
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() { // ends with the input or this process
			in.Scan()
			cancel(errOrphan)
		}()
		_, err := s.Serve(ctx, j.Buyers, func(t shop.Tally) { fmt.Fprintln(out, t) })
		return err
	})
}
