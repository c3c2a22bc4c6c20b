package runjob

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

// signals receives the signals of this process. They either end a wait for the
// lock or are forwarded to the command. At any time, either the wait or the
// forwarding receives the signals, so none is lost in between.
type signals struct {
	got     chan os.Signal
	cancel  context.CancelCauseFunc
	stop    chan struct{} // closed to end watch
	stopped chan struct{} // closed when watch has ended
}

// watchSignals returns a context that ends when a signal asks this process to
// end.
func watchSignals(parent context.Context) (context.Context, *signals) {
	ctx, cancel := context.WithCancelCause(parent)
	s := &signals{got: make(chan os.Signal, 16), cancel: cancel}
	Notify(s.got, passedSignals)
	// An unread message must not end this process.
	Notify(make(chan os.Signal, 1), []os.Signal{syscall.SIGPIPE})
	s.watch()
	return ctx, s
}

func (s *signals) close() {
	signal.Stop(s.got)
	s.take()
	s.cancel(nil)
}

// watch lets signals end the wait until take is called.
func (s *signals) watch() {
	s.stop, s.stopped = make(chan struct{}), make(chan struct{})
	go func() { // ends with take
		defer close(s.stopped)
		for {
			select {
			case sig := <-s.got:
				s.note(sig)
			case <-s.stop:
				return
			}
		}
	}()
}

// take ends the work of watch. When it returns, only the caller receives from
// got, until the next call to watch.
func (s *signals) take() {
	close(s.stop)
	<-s.stopped
}

// note ends the context if the signal requests that.
func (s *signals) note(sig os.Signal) {
	if slices.Contains(endSignals, sig) {
		s.cancel(signalError{sig.(syscall.Signal)})
	}
}

// signalError is the cause of the end of a wait.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return "interrupted: " + e.signal.String() }

// Notify is like signal.Notify, but omits the signals that were ignored at the
// start of this process, such as HUP under nohup. They stay ignored, also in
// the command.
func Notify(to chan<- os.Signal, signals []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
}

// interruption returns the program's error after a signal that asked it to end,
// or nil.
func interruption(ctx context.Context) error {
	var e signalError
	if errors.As(context.Cause(ctx), &e) {
		return cli.Exit(cli.ExitBySignal+int(e.signal), e)
	}
	return nil
}
