//go:build linux || darwin

package main

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
)

func groupsWork() error { return nil }

// endSignals ask this process to end.
var endSignals = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}

// passedSignals go on to the command.
var passedSignals = append([]os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}, endSignals...)

const (
	deadlineEvery = 100 * time.Millisecond // at the deadline of the lease, which nobody tells to move
	goneEvery     = 50 * time.Millisecond  // whether the group is gone
	overstayed    = 10 * time.Second       // how long after the deadline to wait for processes that KILL did not end
)

// job is a command that runs under a lease, in a process group of its own. The group is that of the guard, so it is there before the
// command, and its number is nobody else's for as long as the guard lives.
//
// All is done by one goroutine: run.
type job struct {
	*runner
	lease    *dsync.Lease
	guard    *guard
	terminal *terminal // nil if there is none
	pid      int       // of the command

	children, stops, continued chan os.Signal

	done   ending
	ended  bool      // the command has
	killAt time.Time // the whole group is to be killed then
	termed time.Time // when the group got TERM; zero: not yet
	killed bool
}

// supervise runs the command, and returns when nobody is left of its group.
func (r *runner) supervise(lease *dsync.Lease) ending {
	j := &job{runner: r, lease: lease, terminal: openTerminal(),
		children: make(chan os.Signal, 1), stops: make(chan os.Signal, 1), continued: make(chan os.Signal, 1)}
	defer j.terminal.close()
	signal.Notify(j.children, syscall.SIGCHLD)
	signal.Notify(j.continued, syscall.SIGCONT)
	notify(j.stops, []os.Signal{syscall.SIGTSTP})
	defer func() {
		for _, c := range []chan os.Signal{j.children, j.stops, j.continued} {
			signal.Stop(c)
		}
	}()
	j.killAt = lease.Deadline().Add(-r.reserve)
	var err error
	if j.guard, err = startGuard(j.killAt); err != nil {
		return ending{err: exit(exitBroken, fmt.Errorf("the guard of the command does not start: %w", err))}
	}
	if err := j.start(); err != nil {
		j.guard.end()
		return ending{err: err}
	}
	j.run()
	j.terminal.take(j.guard.pid)
	if !j.guard.reaped {
		j.guard.signal(syscall.SIGKILL) // the guard is left, and whoever could not be seen
	}
	if j.guard.end() && !j.killed { // and the command was seen to end first
		j.lostToGuard()
	}
	return j.done
}

// start starts the command in the group of the guard.
func (j *job) start() error {
	attr := &syscall.SysProcAttr{Setpgid: true, Pgid: j.guard.pid}
	if j.terminal.interactive() {
		attr.Foreground, attr.Ctty = true, int(j.terminal.file.Fd())
	}
	p, err := os.StartProcess(j.path, j.argv, &os.ProcAttr{Env: j.environment(j.lease), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr})
	switch {
	case err == nil:
		j.pid, j.done.started = p.Pid, true
		return p.Release() // reap waits for it
	case errors.Is(err, fs.ErrNotExist):
		return exit(exitNotFound, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOEXEC):
		return exit(exitNotExecutable, err)
	}
	return exit(exitBroken, err)
}

// run ends when the group is gone.
func (j *job) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lost := j.lease.Done()
	for {
		select {
		case <-j.children:
			j.reap()
		case s := <-j.signals.got:
			j.signals.note(s)
			j.guard.signal(s.(syscall.Signal))
		case <-j.stops:
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

// step does what is due, and says when to look again.
func (j *job) step(now time.Time) (next time.Duration, over bool) {
	deadline := j.lease.Deadline()
	if at := deadline.Add(-j.reserve); !at.Equal(j.killAt) && j.lease.Err() == nil {
		j.killAt = at
		if err := j.guard.tell(at); errors.Is(err, os.ErrDeadlineExceeded) && !j.killed {
			j.broken(err) // or else it has ended, and reap finds out why
		}
	}
	if j.ended && !j.guard.hasFellows() {
		return 0, true
	}
	termAt := j.killAt.Add(-j.killAfter)
	switch {
	case j.killed:
		if now.After(deadline.Add(overstayed)) {
			j.done.err = exit(exitLost, fmt.Errorf("processes of group %d do not end by KILL, and the lock is over", j.guard.pid))
			return 0, true
		}
	case j.lease.Err() != nil:
		j.lose(j.lease.Err())
		j.kill()
	case !now.Before(j.killAt):
		j.lose(errNotRenewed)
		j.kill()
	case j.termed.IsZero() && !now.Before(termAt):
		j.lose(errNotRenewed)
		j.say("%v: the command gets TERM, and KILL in %v", errNotRenewed, j.killAt.Sub(now).Round(10*time.Millisecond))
		j.term(now)
	case j.termed.IsZero() && j.ended: // and has left others
		j.term(now)
	case j.termed.IsZero():
		return min(deadlineEvery, termAt.Sub(now)), false
	case !now.Before(j.termed.Add(j.killAfter)):
		j.kill()
	}
	return goneEvery, false
}

// errNotRenewed is the loss of a lock that still lasts for some time.
var errNotRenewed = errors.New("lock lost: it could not be renewed, so others may have it soon")

// errStoodStill is the loss of a lock that was renewed too late for the guard.
var errStoodStill = errors.New("lock lost: dsync stood still until the lock was about to end, so the command was killed")

func (j *job) lose(why error) {
	if j.done.lost == nil && !j.ended {
		j.done.lost = why
	}
}

// broken ends the command, since nobody would if this process were frozen.
func (j *job) broken(err error) {
	j.done.err = exit(exitBroken, fmt.Errorf("the guard of the command is gone, so the command was ended: %w", err))
	j.kill()
}

// term asks the group to end. Members that are stopped could not.
func (j *job) term(now time.Time) {
	j.termed = now
	j.guard.signal(syscall.SIGTERM)
	j.guard.signal(syscall.SIGCONT)
}

func (j *job) kill() {
	j.killed = true
	j.guard.signal(syscall.SIGKILL)
}

// reap takes note of children that have ended or stopped. Where this process is the first of a container, some are nobody else's.
func (j *job) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil || pid == 0:
			return
		case status.Stopped():
			if pid == j.pid && !j.killed {
				j.stopped(status.StopSignal())
			}
			continue
		case pid == j.guard.pid:
			j.guard.reaped = true
			if !j.killed {
				j.guardGone()
			}
		case pid == j.pid:
			j.ended = true
			if j.done.status = status.ExitStatus(); status.Signaled() {
				j.done.status = exitBySignal + int(status.Signal())
			}
		}
	}
}

// guardGone is called when the guard has ended: it has killed the group, or somebody has killed the guard.
func (j *job) guardGone() {
	if j.guard.end() {
		j.lostToGuard()
		j.kill()
	} else {
		j.broken(errors.New("somebody has ended it"))
	}
}

// lostToGuard takes note that the guard has killed the group.
func (j *job) lostToGuard() {
	if j.done.lost = j.lease.Err(); j.done.lost == nil {
		j.done.lost = errStoodStill
	}
}

// stopped is called when the command was stopped: by Ctrl-Z, or because it wants the terminal.
func (j *job) stopped(by syscall.Signal) {
	wants := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	switch {
	case j.terminal == nil, by == syscall.SIGSTOP: // somebody else's will; the lock is kept
		return
	case wants && j.terminal.mine():
		j.terminal.give(j.guard.pid)
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

// suspend stops the group of this process, as Ctrl-Z would, and returns when somebody lets it go on.
func (j *job) suspend() {
	if !j.terminal.shared() {
		return
	}
	select {
	case <-j.continued: // an old one
	default:
	}
	_ = unix.Kill(0, syscall.SIGSTOP)
	<-j.continued
}
