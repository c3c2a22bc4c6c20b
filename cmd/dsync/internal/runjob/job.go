//go:build linux || darwin

package runjob

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/cmd/dsync/internal/cli"
)

func groupsWork() error { return nil }

// endSignals ask this process to end.
var endSignals = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}

// passedSignals are forwarded to the command.
var passedSignals = append([]os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}, endSignals...)

const (
	deadlineEvery = 100 * time.Millisecond // at the deadline of a lease that is no longer renewed
	goneEvery     = 50 * time.Millisecond  // interval between checks whether the group is gone
	// The time after the deadline to wait for processes that KILL did not end.
	overstayed = 10 * time.Second
)

// job is a command that runs under a lease in its own process group, with
// everything that the command has started. The guard is the parent of the
// command. If the system allows it, the guard also becomes the parent of each
// orphaned process of the command. If the guard is gone, this process becomes
// that parent.
//
// One goroutine, run, does all the work.
type job struct {
	*runner
	lease    *dsync.Lease
	guard    *guard
	terminal *terminal    // nil if there is none
	pid      int          // of the command
	others   map[int]bool // children of this process that are older than the guard

	children, stops, continued chan os.Signal

	done   ending
	over   bool      // no command was started, and none will be
	ended  bool      // the command has ended
	alone  bool      // no process of the command is left
	killAt time.Time // time to kill everything
	termed time.Time // when the group got TERM; zero if it has not
	killed bool
}

// supervise runs the command and returns when no process of the command is
// left.
func (r *runner) supervise(lease *dsync.Lease) ending {
	j := &job{runner: r, lease: lease, terminal: openTerminal(), others: map[int]bool{},
		children: make(chan os.Signal, 1), stops: make(chan os.Signal, 1), continued: make(chan os.Signal, 1)}
	defer j.terminal.close()
	signal.Notify(j.children, syscall.SIGCHLD)
	signal.Notify(j.continued, syscall.SIGCONT)
	Notify(j.stops, []os.Signal{syscall.SIGTSTP})
	defer func() {
		for _, c := range []chan os.Signal{j.children, j.stops, j.continued} {
			signal.Stop(c)
		}
	}()
	if err := j.prepare(); err != nil {
		return ending{err: cli.Exit(cli.ExitBroken, fmt.Errorf("the guard of the command does not start: %w", err))}
	}
	// A terminal uses these to stop background processes that change it or
	// write to it.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	j.start()
	j.run()
	j.terminal.take(j.guard.pid) // also after a command that could not be executed
	if !j.guard.reaped {
		j.guard.signal(syscall.SIGKILL) // the guard remains, and perhaps a process that was not visible
	}
	j.guard.end(j.note)
	return j.done
}

// prepare starts the guard.
func (j *job) prepare() (err error) {
	if adopts { // the shell that this program replaced may have started children
		if err := adopt(); err != nil {
			return err
		}
		before, err := family(os.Getpid(), nil)
		if err != nil {
			return err
		}
		for _, p := range before {
			j.others[p.pid] = p.parent == os.Getpid()
		}
	}
	j.guard, err = startGuard(j.path, j.argv, j.environment(j.lease))
	return err
}

// start makes the guard start the command, unless the lease has ended or is so
// short that the command would have to end immediately.
func (j *job) start() {
	j.killAt = j.lease.Deadline().Add(-j.reserve)
	if j.done.lost = j.mayNot(time.Now().Add(j.killAfter)); j.done.lost != nil {
		j.over = true
	} else if err := j.guard.sendDeadline(j.killAt); err != nil {
		j.over, j.done.err = true, cli.Exit(cli.ExitBroken, fmt.Errorf("the guard of the command is gone: %w", err))
	}
}

// note records a report from the guard.
func (j *job) note(r report) {
	switch r.kind {
	case hasStarted:
		j.pid, j.done.started = int(r.value), true
	case hasFailed:
		j.over, j.done.err = true, startError(&fs.PathError{Op: "fork/exec", Path: j.path, Err: syscall.Errno(r.value)})
	case hasStopped:
		if !j.killed && !j.guard.reaped {
			j.stopped(syscall.Signal(r.value))
		}
	case hasEnded:
		j.ended, j.done.status = true, int(r.value)
	case isAlone:
		j.alone = true
	case isKilling:
		if j.done.lost == nil {
			j.lostToGuard()
		}
		j.killed = true
	}
}

// startError returns the program's error if the command does not start.
func startError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cli.Exit(cli.ExitNotFound, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOEXEC):
		return cli.Exit(cli.ExitNotExecutable, err)
	}
	return cli.Exit(cli.ExitBroken, err)
}

// run ends when no process of the command is left.
func (j *job) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lost, heard := j.lease.Done(), j.guard.heard
	for !j.over {
		var signals, stops chan os.Signal // nil until a command can receive them
		if j.done.started {
			signals, stops = j.signals.got, j.stops
		}
		select {
		case <-j.children:
			j.reap()
		case r, ok := <-heard:
			if ok {
				j.note(r)
			} else {
				heard = nil // reap finds out why
			}
		case s := <-signals:
			j.signals.note(s)
			j.guard.signal(s.(syscall.Signal))
		case <-stops:
			j.guard.signal(syscall.SIGTSTP)
		case <-j.continued:
			if j.lease.Err() == nil {
				j.guard.signal(syscall.SIGCONT)
			}
		case <-lost:
			lost = nil
		case <-timer.C:
		}
		next, over := j.step(time.Now())
		if over {
			return
		}
		timer.Reset(next)
	}
}

// mayNot returns the reason why the command must not run at a given time, or
// nil.
func (j *job) mayNot(at time.Time) error {
	switch err := j.lease.Err(); {
	case err != nil:
		return err
	case !at.Before(j.killAt):
		return errNotRenewed
	}
	return nil
}

// step does the work that is due and returns when to call it again.
func (j *job) step(now time.Time) (next time.Duration, over bool) {
	deadline := j.lease.Deadline()
	if at := deadline.Add(-j.reserve); !at.Equal(j.killAt) && j.lease.Err() == nil {
		j.killAt = at
		if err := j.guard.sendDeadline(at); errors.Is(err, os.ErrDeadlineExceeded) && !j.killed {
			j.broken(err) // otherwise it has ended, and reap finds out why
		}
	}
	if j.over || j.gone() {
		return 0, true
	}
	termAt := j.killAt.Add(-j.killAfter)
	why := j.mayNot(now)
	switch {
	case j.killed:
		if now.After(deadline.Add(overstayed)) {
			j.done.err = cli.Exit(cli.ExitLost, errors.New("processes of the command survive KILL, and the lock has ended"))
			return 0, true
		}
		j.kill() // also processes that were not visible before
	case why != nil:
		j.lose(why)
		j.kill()
	case j.termed.IsZero() && !now.Before(termAt):
		j.lose(errNotRenewed)
		j.term(now) // before the message, which may have no reader
		j.say("%v: the command gets TERM, and KILL in %v", errNotRenewed, j.killAt.Sub(now).Round(10*time.Millisecond))
	case j.termed.IsZero() && j.ended: // and has left other processes
		j.term(now)
	case j.termed.IsZero():
		return min(deadlineEvery, termAt.Sub(now)), false
	case !now.Before(j.termed.Add(j.killAfter)):
		j.kill()
	}
	return goneEvery, false
}

// errNotRenewed reports that a lock was not renewed and will be lost. It is
// still held for some time.
var errNotRenewed = errors.New("lock lost: it could not be renewed, so another client may soon acquire it")

// errStoodStill reports the loss of a lock that was renewed too late for the
// guard.
var errStoodStill = errors.New("lock lost: dsync was suspended until the lock was about to end, so the command was killed")

func (j *job) lose(why error) {
	if j.done.lost == nil && !j.ended {
		j.done.lost = why
	}
}

// broken ends the command, because no other process would end it if this
// process were frozen.
func (j *job) broken(err error) {
	j.done.err = cli.Exit(cli.ExitBroken, fmt.Errorf("the guard of the command is gone, so the command was ended: %w", err))
	j.kill()
}

// term asks the group to end. It also continues stopped members, which could
// not react otherwise.
func (j *job) term(now time.Time) {
	j.termed = now
	j.guard.signal(syscall.SIGTERM)
	j.guard.signal(syscall.SIGCONT)
}

// family returns the living processes of the command.
func (j *job) family() ([]process, error) {
	if adopts && j.guard.reaped {
		return family(os.Getpid(), j.others)
	}
	return family(j.guard.pid, nil)
}

// kill kills the rest of the command. If the guard may still start the command,
// kill kills the guard, too. Otherwise it spares the guard, which would do the
// same if this process were killed now.
func (j *job) kill() {
	j.killed = true
	if !j.done.started && !j.guard.reaped {
		_ = unix.Kill(j.guard.pid, syscall.SIGKILL)
	}
	_, _ = killAll(j.family)
}

// gone reports whether no process of the command is left.
func (j *job) gone() bool {
	switch {
	case !j.ended && !j.guard.reaped:
		return false
	case j.alone:
		return true
	}
	all, err := j.family()
	if err != nil {
		return false
	}
	for _, p := range all {
		// A process outside of the group may belong to another user, so that
		// this process cannot end it.
		if p.group == j.guard.pid || p.signal(0) != unix.EPERM {
			return false
		}
	}
	return len(all) > 0 || !adopts || j.guard.reaped // otherwise the guard reports it
}

// reap records children that have ended. If this process is the first of a
// container, it also inherits unrelated children.
func (j *job) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.ECHILD && adopts && j.guard.reaped:
			j.alone = true
			return
		case err != nil || pid == 0:
			return
		case status.Stopped():
			if pid == j.guard.pid { // a signal has stopped it
				_ = unix.Kill(pid, syscall.SIGCONT)
			}
		case pid == j.guard.pid:
			j.guard.reaped = true
			j.guard.end(j.note)
			if !j.killed && !j.over {
				j.broken(errors.New("another process ended the guard"))
			}
		case pid == j.pid: // which the guard has left
			j.ended, j.done.status = true, exitStatusOf(status)
		default:
			delete(j.others, pid)
		}
	}
}

// lostToGuard records that the guard has killed the group, possibly before the
// command started.
func (j *job) lostToGuard() {
	j.done.err = nil
	if j.done.lost = j.lease.Err(); j.done.lost == nil {
		j.done.lost = errStoodStill
	}
}

// stopped is called when the command was stopped, by Ctrl-Z or because it needs
// the terminal.
func (j *job) stopped(by syscall.Signal) {
	wants := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	switch {
	case j.terminal == nil, by == syscall.SIGSTOP: // stopped by another process; keep the lock
		return
	case wants && j.terminal.mine():
		group, err := unix.Getpgid(j.pid) // which may have left the guard's group
		if err != nil {
			group = j.guard.pid
		}
		j.terminal.give(group)
		j.guard.signal(syscall.SIGCONT)
		return
	}
	had := j.terminal.take(j.guard.pid)
	j.suspend()
	if _, over := j.step(time.Now()); over || j.killed || !j.termed.IsZero() {
		return // the lock did not last
	}
	if had && j.terminal.mine() {
		j.terminal.give(j.guard.pid)
	}
	j.guard.signal(syscall.SIGCONT)
}

// suspend stops the group of this process, as Ctrl-Z would, and returns when
// the group is continued.
func (j *job) suspend() {
	if !j.terminal.shared() {
		return
	}
	select {
	case <-j.continued: // an old signal
	default:
	}
	_ = unix.Kill(0, syscall.SIGSTOP)
	<-j.continued
}
